"""The options for settings that the commands of the parts share, and their conversion to settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from wheelmq.cli.part import CannotStart

if TYPE_CHECKING:
    from wheelmq.config.apache import Reading
    from wheelmq.config.schema import Schema

T = TypeVar("T", bound=msgspec.Struct)

log = logging.getLogger("wheelmq")

DEFAULT: Final = "the default"

config_option = click.option(
    "-c",
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of settings: .toml, or properties as in Apache RocketMQ.",
)
set_option = click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any setting, by WheelMQ's name or Apache's. It overrides the environment, which overrides the file.",
)


def parse_pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign:
            raise CannotStart(f"--set {pair}: write NAME=VALUE, as in --set timer_max_delay_seconds=604800")
        found[name.strip()] = value.strip()
    return found


def settings_of(
    schema: Schema[T],
    file: Path | None,
    pairs: tuple[str, ...] = (),
    *,
    fallbacks: Mapping[str, Any],
    options: Mapping[str, tuple[Any, str]],
) -> tuple[T, Reading]:
    """Return the settings of a part, and their source. Raises CannotStart.

    `options` maps a field to its value (None if not given) and its option on the command line. `fallbacks` are defaults
    that the shape does not have.
    """
    from wheelmq.config import sources
    from wheelmq.config.apache import Reading
    from wheelmq.config.errors import ConfigError
    from wheelmq.config.schema import Given

    try:
        reading = sources.read(file, schema, all_schemas)
        chosen = sources.read_pairs(parse_pairs(pairs), schema)
        given = {field: Given(value, DEFAULT) for field, value in fallbacks.items()} | reading.given
        given |= {field: Given(value, option) for field, (value, option) in options.items() if value is not None}
        given |= chosen.given
        return schema.build(given), Reading(given, reading.notes + chosen.notes)
    except ConfigError as error:
        raise CannotStart(str(error)) from None


def all_schemas() -> tuple[Schema[Any], ...]:
    """Return the schemas of all parts, which may share one TOML file."""
    from wheelmq.broker.schema import BROKER
    from wheelmq.nameserver.settings import NAME_SERVER

    return BROKER, NAME_SERVER


def print_notes(notes: list[str]) -> None:
    for note in notes:
        log.warning("%s", note)
