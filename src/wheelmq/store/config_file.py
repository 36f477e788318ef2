"""The JSON files of the config folder (RocketMQ: ConfigManager).

Each change replaces the file in one step and leaves the previous one as `.bak`; where the file does not read, the
`.bak` does.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from wheelmq.formats.wire import bodies
from wheelmq.system.disk import Disk

T = TypeVar("T")
log = logging.getLogger(__name__)


def load(disk: Disk, path: Path, shape: type[T]) -> T | None:
    """What the file at `path` holds, or else its `.bak`; None when neither is there.

    Raises BodyError when a file is there and neither reads: starting without it would lose what it says.
    """
    problem: bodies.BodyError | None = None
    for candidate in (path, path.with_name(path.name + ".bak")):
        raw = disk.read(candidate)
        if raw is None:
            continue
        if not raw.strip():
            log.warning("%s is empty, and counts as if it were not there", candidate)
            continue
        try:
            return bodies.read(raw, shape)
        except bodies.BodyError as error:
            problem = bodies.BodyError(f"{candidate}: {error}; mend it or remove it")
            log.warning("%s", problem)
    if problem is not None:
        raise problem
    return None


def save(disk: Disk, path: Path, value: Any) -> None:
    """Replace the file at `path` by `value`."""
    disk.replace(path, msgspec.json.format(bodies.write(value), indent=2), keep_previous=True)
