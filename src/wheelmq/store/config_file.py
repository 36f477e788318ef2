"""Reads and writes the JSON files of the config folder (RocketMQ: ConfigManager).

Each change replaces the file atomically and keeps the previous one as `.bak`, which is read if the file is damaged.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from wheelmq.formats.wire import bodies
from wheelmq.system.disk import Disk

T = TypeVar("T")
PART = 500
"""Number of table entries encoded in one step."""
log = logging.getLogger(__name__)


def load(disk: Disk, path: Path, shape: type[T]) -> T | None:
    """Return the content of the file at `path`, or of its `.bak`; None if neither exists.

    Raises BodyError if one exists and none can be decoded: a start without the file would lose its content.
    """
    problem: bodies.BodyError | None = None
    for candidate in (path, path.with_name(path.name + ".bak")):
        raw = disk.read(candidate)
        if raw is None:
            continue
        if not raw.strip():
            log.warning("%s is empty and is ignored", candidate)
            continue
        try:
            return bodies.read(raw, shape)
        except bodies.BodyError as error:
            problem = bodies.BodyError(f"{candidate}: {error}; repair the file or remove it")
            log.warning("%s", problem)
    if problem is not None:
        raise problem
    return None


def save(disk: Disk, path: Path, value: Any, *, private: bool = False) -> None:
    disk.replace(path, encode(value), keep_previous=True, private=private)


def encode(value: Any) -> bytes:
    """Return `value` as indented JSON, encoded in parts, so that a large table does not keep the interpreter's lock."""
    if not isinstance(value, msgspec.Struct):
        return msgspec.json.format(bodies.write(value), indent=2)
    fields = []
    for field in msgspec.structs.fields(value):
        inner = getattr(value, field.name)
        if inner is not None:
            raw = _encode_table(inner) if isinstance(inner, dict) else _formatted(inner)
            fields.append(f'  "{field.encode_name}": '.encode() + raw)
    return b"{\n" + b",\n".join(fields) + b"\n}" if fields else b"{}"


def _encode_table(table: dict[Any, Any]) -> bytes:
    entries = [(key, inner) for key, inner in table.items() if inner is not None]
    parts = [_formatted(dict(entries[at : at + PART])) for at in range(0, len(entries), PART)]
    return b"{" + b",".join(part[1:-4] for part in parts) + b"\n  }" if parts else b"{}"


def _formatted(value: Any) -> bytes:
    return msgspec.json.format(bodies.write(value), indent=2).replace(b"\n", b"\n  ")
