"""The command line: one module per command, imported when the command is called.

A command imports heavy packages (PySpark, Numba, NumPy) inside its function, so that others start fast.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import click

COMMANDS: Final = (
    "up",
    "demo",
    "send",
    "cancel",
    "consume",
    "timers",
    "timer-counts",
    "topics",
    "groups",
    "lag",
    "dead-letters",
    "dump",
    "ship",
    "backup",
    "restore",
    "doctor",
    "broker",
    "nameserver",
    "promote",
    "pipeline",
    "test-broker",
    "config",
    "users",
    "acl",
    "admin",
    "completion",
    "man",
)


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found = importlib.import_module(f"wheelmq.cli.{cmd_name.replace('-', '_')}").command
        assert isinstance(found, click.Command)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises PackageMissing instead of ModuleNotFoundError for a package of others."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", "wheelmq"):
                raise
            from wheelmq.cli.reinstall import PackageMissing

            raise PackageMissing(package) from None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="wheelmq", prog_name="wheelmq")
def main() -> None:
    """WheelMQ: a message broker that delivers each message at the moment its sender chose.

    Start with `wheelmq demo`, or run all parts with `wheelmq up`.
    """
