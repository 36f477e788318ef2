"""`wheelmq config`: check a file of settings before a start uses it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from wheelmq.cli.config_options import DEFAULT, all_schemas, settings_of
from wheelmq.cli.part import CannotStart
from wheelmq.cli.tables import counted

if TYPE_CHECKING:
    from wheelmq.config.schema import Schema

PARTS: Final = ("broker", "nameserver")
PLACEHOLDERS: Final = {"store_path": Path("store"), "kv_config_path": Path("kvConfig.json")}


class ConfigGroup(click.Group):
    """A group that names the right command if the user passes a file instead of a command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and Path(args[0]).is_file():
            ctx.fail(f"{args[0]!r} is a file, no command: `wheelmq config check {shlex.quote(args[0])}` checks it")
        return super().resolve_command(ctx, args)


@click.group(name="config", cls=ConfigGroup, short_help="Check a file of settings, or list all settings.")
def command() -> None:
    """Check settings: broker.conf and namesrv.conf of Apache RocketMQ, TOML files, environment variables."""


@command.command(name="check")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--part", type=click.Choice(PARTS), help="The part that uses FILE. By default, the names in FILE decide.")
def check(file: Path, part: str | None) -> None:
    """Print the settings that FILE and the environment give, and where each value is given.

    Settings without effect are listed. A value that is rejected or not allowed ends the command with exit code 1.
    """
    try:
        for name in [part] if part else _parts_of(file):
            _check(name, file)
    except CannotStart as error:
        raise click.ClickException(str(error)) from None


@command.command(name="schema")
def schema() -> None:
    """Print the JSON schema of a TOML file."""
    from wheelmq.config import toml

    click.echo(json.dumps(toml.json_schema(all_schemas()), indent=2))


@command.command(name="keys")
@click.option("--part", type=click.Choice(PARTS), default="broker", show_default=True)
@click.option("--ours", is_flag=True, help="List all settings by WheelMQ's names instead of Apache's keys.")
def keys(part: str, ours: bool) -> None:
    """Print Apache's keys and the treatment of each, as in docs/operations/settings.md."""
    from wheelmq.config import table

    found = _schema(part)
    click.echo(table.our_names(found) if ours else table.apaches_keys(found.keys.values(), found), nl=False)


def _schema(part: str) -> Schema[Any]:
    return all_schemas()[PARTS.index(part)]


def _parts_of(file: Path) -> list[str]:
    """Return both parts for a TOML file; otherwise the part that knows more of its names."""
    from wheelmq.config import properties, sources
    from wheelmq.config.errors import ConfigError

    if sources.is_toml(file):
        return list(PARTS)
    try:
        found, _ = properties.parse_valid(sources.read_bytes(file))
    except ConfigError as error:
        raise CannotStart(str(error)) from None
    names = {one.name for one in found}
    return [max(PARTS, key=lambda part: len(names & set(_schema(part).keys)))]


def _check(part: str, file: Path) -> None:
    from wheelmq.config.apache import written
    from wheelmq.config.schema import is_secret

    found = _schema(part)
    fallbacks = {name: path for name, path in PLACEHOLDERS.items() if name in found.fields}
    settings, reading = settings_of(found, file, fallbacks=fallbacks, options={})
    given = {field: one for field, one in reading.given.items() if field not in fallbacks or one.where != DEFAULT}
    click.echo(f"{part}: {counted(len(given), 'setting')} {'is' if len(given) == 1 else 'are'} given")
    for field, (_, where) in sorted(given.items()):
        shown = "..." if is_secret(found, field) else written(found.value(settings, field))
        click.echo(f"  {field} = {shown}   ({where})")
    for note in reading.notes:
        click.echo(f"  ! {note}")
