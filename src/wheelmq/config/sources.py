"""The sources of settings, by precedence: the command line, the environment, the file, the defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from wheelmq.config import apache
from wheelmq.config.apache import Reading
from wheelmq.config.environment import variables
from wheelmq.config.errors import ConfigError
from wheelmq.config.keys import SECRETS
from wheelmq.config.schema import Given, Schema, is_secret, nearest


def read(file: Path | None, schema: Schema[Any], schemas: Callable[[], Iterable[Schema[Any]]]) -> Reading:
    """Return the settings of a part from the environment and a file: TOML by its name, otherwise Apache's properties.

    A TOML file and the environment may have the settings of all `schemas`. Raises ConfigError.
    """
    reading = Reading()
    tables: dict[str, Any] = {}
    if file is not None:
        raw = read_bytes(file)
        if is_toml(file):
            from wheelmq.config import toml  # imported only if it is needed

            tables = toml.parse(raw, str(file))
        else:
            reading = apache.read(raw, str(file), schema)
    if tables or variables():
        from wheelmq.config import toml

        reading.given |= toml.check(tables, str(file), schema, schemas()).given
    return reading


def read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None


def is_toml(file: Path) -> bool:
    return file.suffix.lower() == ".toml"


def read_pairs(pairs: Mapping[str, str], schema: Schema[Any]) -> Reading:
    """Return the values of `--set`, by WheelMQ's names or Apache's. Raises ConfigError."""
    ours = schema.fields
    for name in pairs:
        if name in SECRETS or is_secret(schema, schema.field_of(name) or ""):
            raise ConfigError(
                f"--set {name}: other users of this machine can read a command line. Write the value to a file of "
                "settings that only you can read, and name it with -c"
            )
    apaches = {name: value for name, value in pairs.items() if name in schema.keys and name not in ours}
    reading = apache.interpret(apaches, {name: f"--set {name}" for name in apaches}, schema)
    for name, value in pairs.items():
        if name in apaches:
            continue
        field = schema.field_of(name)
        if field is None:
            hint = nearest(name, [*ours, *schema.keys])
            raise ConfigError(
                f"--set {name}: there is no setting {name!r}{hint}; `wheelmq config keys --ours` lists all"
            )
        if field in reading.given:
            raise ConfigError(f"{field} is given twice, once by Apache's name")
        reading.given[field] = Given(value, f"--set {name}")
    return reading
