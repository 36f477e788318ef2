"""The remedy for packages of WheelMQ that are missing or damaged."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import ClassVar

import click


class PackageMissing(click.ClickException):
    """A package that WheelMQ always needs is not installed. Another attempt fails too."""

    exit_code: ClassVar[int] = os.EX_CONFIG

    def __init__(self, name: str) -> None:
        super().__init__(f"the package {name} is not installed, and WheelMQ needs it: {reinstall_text(name)}")


def reinstall_text(*packages: str) -> str:
    """Return the command that installs `packages` again, or the environment of a checkout."""
    import wheelmq

    checkout = Path(wheelmq.__file__).parents[2]
    if (checkout / "Makefile").exists():
        return f"create the environment again: `make -C {checkout} clean install`; stores are not touched"
    return f"`{sys.executable} -m pip install --force-reinstall {' '.join(packages)}`"
