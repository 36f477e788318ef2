"""Read broker.conf and namesrv.conf of Apache RocketMQ unchanged.

Apache uses the default for a value that does not parse. Here it ends the start, with its file and line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from wheelmq.config import properties
from wheelmq.config.errors import ConfigError
from wheelmq.config.keys import SECRETS, ApacheKey, Kind, Treatment
from wheelmq.config.schema import Given, Schema, nearest
from wheelmq.formats.java import java_int, java_long

QUEUE_UNIT_BYTES: Final = 20
_DOUBLE: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_BOM: Final = "\xef\xbb\xbf"


@dataclass(slots=True)
class Reading:
    given: dict[str, Given] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read(raw: bytes, file: str, schema: Schema[Any]) -> Reading:
    """Return the settings in a property file. Notes and errors call it `file`.

    Raises ConfigError with one line for each value that is rejected, does not parse or is not allowed.
    """
    found, invalid = properties.parse_valid(raw)
    last = {one.name: one for one in found}
    places = {name: f"{file}, line {one.line}: {name}" for name, one in last.items()}
    reading, problems = _interpret({name: one.value for name, one in last.items()}, places, schema)
    problems = [f"{file}, {problem}" for problem in invalid] + problems
    reading.notes += _of_addresses(reading.given, file, schema) + _of_role(reading.given, schema)
    reading.notes += [
        f"{file}, line {one.line}: {one.name} is given again in line {last[one.name].line}, which counts"
        for one in found
        if last[one.name] is not one
    ]
    if problems:
        raise ConfigError("\n".join(problems + schema.problems(reading.given)))
    return reading


def _of_addresses(given: dict[str, Given], file: str, schema: Schema[Any]) -> list[str]:
    """Return notes about the addresses that the file leaves to Apache's defaults.

    If brokerIP1 is no loopback address and bindAddress is missing, the broker listens on every address.
    """
    dialled = given.get("broker_ip")
    if "broker_ip" in schema.fields and dialled is None:
        if given.get("listen_host", Given("", "")).value == "0.0.0.0":
            return []  # the broker chooses an address, or ends the start
        return [f"{file} gives no brokerIP1: clients get 127.0.0.1, and from Apache an address of the machine"]
    if "listen_host" in given:
        return []
    if dialled is not None and not dialled.value.startswith("127."):
        given["listen_host"] = Given("0.0.0.0", f"{file}, without bindAddress")
        return [f"{file} gives no bindAddress: WheelMQ listens on every address of the machine, as Apache does"]
    return [f"{file} gives no bindAddress: WheelMQ listens on 127.0.0.1, Apache on every address"]


def _of_role(given: dict[str, Given], schema: Schema[Any]) -> list[str]:
    """Give a master the id 0, as Apache does, and return a note if the file has another one."""
    if "broker_id" not in schema.fields or "broker_id" not in given:
        return []
    (broker_id, where), role = given["broker_id"], given.get("broker_role")
    if role is not None and role.value == "SLAVE":
        return []
    given["broker_id"] = Given(0, where)
    return [] if str(broker_id) == "0" else [f"{where}={broker_id}: the id of a master is 0, as with Apache"]


def interpret(values: Mapping[str, str], places: Mapping[str, str], schema: Schema[Any]) -> Reading:
    """Convert `values`, by Apache's names and found at `places`.

    Raises ConfigError with one line for each value that is rejected or does not parse.
    """
    reading, problems = _interpret(values, places, schema)
    if problems:
        raise ConfigError("\n".join(problems))
    return reading


def _interpret(values: Mapping[str, str], places: Mapping[str, str], schema: Schema[Any]) -> tuple[Reading, list[str]]:
    """Convert `values`. Returns those that parse, and a problem for each of the others."""
    reading = Reading()
    problems = []
    for name, text in values.items():
        key = schema.keys.get(name)
        if key is None:
            hint = " (the file begins with a byte order mark: remove it)" if name.startswith(_BOM) else ""
            hint = hint or nearest(name, schema.keys)
            reading.notes.append(f"{places[name]} is no key of Apache RocketMQ 5.3.3{hint}: it is ignored")
            continue
        try:
            _take(key, text.strip(), values, places[name], reading)
        except ValueError as error:
            problems.append(f"{places[name]}: {error}")
    return reading, problems


def written(value: Any, key: str = "") -> str:
    """Return the value of the field of `key` as Apache writes it."""
    if key in _WRITTEN:
        return _WRITTEN[key][str(value)]
    if isinstance(value, bool):
        return str(value).lower()
    return ";".join(value) if isinstance(value, tuple) else str(value)


def _take(key: ApacheKey, text: str, values: Mapping[str, str], where: str, reading: Reading) -> None:
    """Convert one value and add it to `reading`. Raises ValueError if it is rejected or does not parse."""
    value = _parse(key, text)
    if key.treatment is Treatment.HONOURED:
        if text or key.default:
            taken, note = _CONVERSIONS.get(key.name, _as_it_is)(value)
            reading.given[key.ours] = Given(taken, where)
            if note:
                reading.notes.append(f"{where}={text}: {note}")
    elif value != _parse(key, key.default) and not _is_as_ever(key.name, text, values):
        shown = "..." if key.name in SECRETS else text
        if key.treatment is Treatment.REFUSED:
            raise ValueError(f"{shown} is refused: {key.why}")
        reading.notes.append(f"{where}={shown} has no effect: {key.why}")


def _parse(key: ApacheKey, text: str) -> str:
    """Return `text` in its canonical form. Raises ValueError with the allowed values."""
    if key.kind is Kind.TEXT or text.startswith("<"):
        return text
    if key.kind is Kind.BOOLEAN:
        if text.lower() in ("true", "false"):
            return text.lower()
        raise ValueError(f"found {text!r}; allowed: true, false")
    if key.kind is Kind.DOUBLE:
        if _DOUBLE.fullmatch(text):
            return str(float(text))
        raise ValueError(f"found {text!r}; allowed: a number")
    number = (java_int if key.kind is Kind.INT else java_long)(text)
    if number is None:
        raise ValueError(f"found {text!r}; allowed: a whole number of {32 if key.kind is Kind.INT else 64} bits")
    return str(number)


def _is_as_ever(name: str, text: str, values: Mapping[str, str]) -> bool:
    root = values.get("storePathRootDir", "").strip()
    return name == "storePathCommitLog" and bool(root) and Path(text) == Path(root) / "commitlog"


def _as_it_is(value: str) -> tuple[Any, str]:
    return value, ""


def _units(value: str) -> tuple[Any, str]:
    whole = -(-int(value) // QUEUE_UNIT_BYTES) * QUEUE_UNIT_BYTES
    return whole, "" if whole == int(value) else f"taken as {whole}, whole units, as Apache does"


def _within(least: int, most: int) -> Any:
    def convert(value: str) -> tuple[Any, str]:
        taken = min(max(int(value), least), most)
        return taken, "" if taken == int(value) else f"taken as {taken}, as Apache does"

    return convert


def _hours(value: str) -> tuple[Any, str]:
    return ";".join(part.strip().zfill(2) for part in value.split(";")), ""


def _words(true: str, false: str) -> Any:
    """Return the conversion of a boolean to one of two words."""

    def convert(value: str) -> tuple[Any, str]:
        return (true if value == "true" else false), ""

    return convert


_CONVERSIONS: Final[dict[str, Any]] = {
    "mappedFileSizeConsumeQueue": _units,
    "registerNameServerPeriod": _within(10_000, 60_000),
    "diskMaxUsedSpaceRatio": _within(10, 95),
    "deleteWhen": _hours,
    "useTLS": _words("always", "never"),
    "tls.client.authServer": _words("chain", "none"),
}
"""The conversions of some keys: the value to use, and a note or an empty text."""
_WRITTEN: Final[dict[str, dict[str, str]]] = {
    "useTLS": {"always": "true", "auto": "false", "never": "false"},
    "tls.client.authServer": {"full": "true", "chain": "true", "none": "false"},
}
"""Apache's words for the values of some keys, which are booleans there. Its tools compare and parse these words."""
