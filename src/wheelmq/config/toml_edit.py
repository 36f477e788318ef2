"""Change values in a TOML file, and keep its comments and order."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

from wheelmq.config.errors import ConfigError

_HEADER: Final = re.compile(r"\s*\[")
_VALUE: Final = r"""("[^"\\]*"|'[^']*'|[^\s#"'\[{]+)"""


def with_changes(raw: bytes, changes: Mapping[tuple[str, str], Any]) -> bytes:
    """Return the file with changed values: numbers, booleans or texts, by table and key.

    Raises ConfigError for a file that does not parse, and for a value that is not alone on its line.
    """
    text = raw.decode()
    try:
        wanted = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"it is no TOML: {error}") from None
    for (group, key), value in changes.items():
        text = _changed(text, group, key, _written(value))
        wanted.setdefault(group, {})[key] = value
    if not _loads_as(text, wanted):
        names = ", ".join(f"[{group}] {key}" for group, key in changes)
        raise ConfigError(f"{names} is not on a line of its own: change it by hand")
    return text.encode()


def _changed(text: str, group: str, key: str, written: str) -> str:
    lines = text.splitlines(keepends=True)
    headers = [i for i, line in enumerate(lines) if re.match(rf"\s*\[\s*{group}\s*\]\s*(#.*)?$", line)]
    if not headers:
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{gap}[{group}]\n{key} = {written}\n"
    first = headers[0] + 1
    for i in range(first, len(lines)):
        if _HEADER.match(lines[i]):
            break
        if re.match(rf"\s*{key}\s*=", lines[i]):
            lines[i] = re.sub(rf"^(\s*{key}\s*=\s*){_VALUE}", lambda m: m[1] + written, lines[i])
            return "".join(lines)
    if not lines[first - 1].endswith("\n"):
        lines[first - 1] += "\n"
    return "".join([*lines[:first], f"{key} = {written}\n", *lines[first:]])


def _loads_as(text: str, wanted: dict[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else json.dumps(value)
