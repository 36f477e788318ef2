"""What the commands of the parts share about settings: their options, and how these become settings."""

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
    help="Settings: a .toml file, or one of properties as Apache RocketMQ has.",
)
set_option = click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any setting, by our name or Apache's. It counts before the environment, and that before the file.",
)


def parse_pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE texts as a dict. Raises CannotStart."""
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
    """The settings of a part, and how they were given.

    `options` are fields by the command line's option, None where that is not given; `fallbacks` stand in for defaults.
    Raises CannotStart.
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
    """Those of every part, which may stand in one TOML file."""
    from wheelmq.broker.schema import BROKER
    from wheelmq.nameserver.settings import NAME_SERVER

    return BROKER, NAME_SERVER


def tell(notes: list[str]) -> None:
    """Write `notes` to the log."""
    for note in notes:
        log.warning("%s", note)
