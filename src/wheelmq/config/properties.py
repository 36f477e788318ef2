r"""Files of properties, as java.util.Properties loads them (RocketMQ: broker.conf, namesrv.conf).

Bytes are ISO-8859-1; other characters are written as \uXXXX. A line ends at LF, CR or CR LF. Blank lines and lines
that begin with # or ! are ignored. A backslash at the end of a line joins the next line without its indent. A name
ends at the first =, : or blank without a backslash before it. Trailing blanks belong to the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from wheelmq.config.errors import ConfigError

_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")
_BLANKS: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WRITTEN: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_UNIT: Final = re.compile(r"[0-9a-fA-F]{4}")


class PropertyLine(NamedTuple):
    """A name, its value, and its first and last line in the file, counted from 1."""

    name: str
    value: str
    line: int
    last_line: int


def parse(raw: bytes) -> list[PropertyLine]:
    """Return the properties of a file in order; later duplicates count.

    Raises ConfigError with one line for each invalid escape.
    """
    found, problems = parse_valid(raw)
    if problems:
        raise ConfigError("\n".join(problems))
    return found


def parse_valid(raw: bytes) -> tuple[list[PropertyLine], list[str]]:
    """Return the properties of a file in order, and a problem for each line with an invalid escape."""
    found, problems = [], []
    for text, line, last in _logical_lines(raw.decode("latin-1")):
        try:
            found.append(_split(text, line, last))
        except ConfigError as error:
            problems.append(str(error))
    return found, problems


def write(values: Mapping[str, str]) -> str:
    """Return one line per value, sorted by name. Parsing the lines gives the same values."""
    return "".join(_line(name, values[name]) for name in sorted(values))


def escape(value: str) -> str:
    written = "".join(_WRITTEN.get(char) or _ascii(char) for char in value)
    return f"\\{written}" if written.startswith(" ") else written


def escape_name(name: str) -> str:
    return "".join(f"\\{char}" if char in " =:#!" else _WRITTEN.get(char) or _ascii(char) for char in name)


def with_changes(raw: bytes, changes: Mapping[str, str]) -> bytes:
    """Return the file with other values for the names in `changes`, and all other lines unchanged.

    New names are appended. Raises ConfigError as `parse` does.
    """
    lines = [line for line in _LINE.findall(raw.decode("latin-1")) if line]
    places = {found.name: found for found in parse(raw)}
    for name in sorted(changes, key=lambda name: places[name].line if name in places else 0, reverse=True):
        if name in places:
            lines[places[name].line - 1 : places[name].last_line] = [_line(name, changes[name])]
    if lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += "\n"
    if lines and lines[-1].rstrip("\r\n").endswith("\\"):
        lines.append("\n")  # otherwise the backslash would join the next line
    lines += [_line(name, changes[name]) for name in sorted(changes) if name not in places]
    return "".join(lines).encode("latin-1")


def _line(name: str, value: str) -> str:
    return f"{escape_name(name)}={escape(value)}\n"


def _logical_lines(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield each logical line, which joins one or several physical lines, with its first and last line number."""
    joined, first = "", 0
    for number, physical in enumerate(_LINE.findall(text), 1):
        content = physical.rstrip("\r\n").lstrip(_BLANKS)
        if not first:
            if not content or content[0] in "#!":
                continue
            first = number
        backslashes = len(content) - len(content.rstrip("\\"))
        if backslashes % 2 and physical:
            joined += content[:-1]
            if physical[-1] in "\r\n":
                if not joined:
                    first = 0  # only a backslash: treated as a blank line
                continue
        else:
            joined += content
        if joined:
            yield joined, first, number
        joined, first = "", 0
    if joined:
        yield joined, first, number


def _split(text: str, line: int, last_line: int) -> PropertyLine:
    at = 0
    while at < len(text) and text[at] not in "=:" + _BLANKS:
        at += 2 if text[at] == "\\" else 1
    rest = text[at:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return PropertyLine(_unescape(text[:at], line), _unescape(rest, line), line, last_line)


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text
    found: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\":
            char = text[at : at + 1]
            at += 1
            if char == "u":
                unit = text[at : at + 4]
                if not _UNIT.fullmatch(unit):
                    raise ConfigError(f"line {line}: \\u{unit}: write \\u and four hexadecimal digits, or \\\\u")
                char = chr(int(unit, 16))
                at += 4
            else:
                char = _ESCAPES.get(char, char)
        found.append(char)
    return _join_pairs("".join(found))


def _join_pairs(text: str) -> str:
    """Join each surrogate pair of UTF-16 to one character."""
    return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")


def _ascii(char: str) -> str:
    if " " <= char <= "~":
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
