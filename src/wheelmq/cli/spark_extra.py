"""The packages of `wheelmq[spark]`. Only the pipeline needs them: without them the broker does its work."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

import click

PACKAGES: Final = ("pyspark", "pyarrow", "py4j")
INSTALL: Final = 'pip install "wheelmq[spark]"'


def missing_packages() -> list[str]:
    """Return the packages that a pipeline needs and that are not installed."""
    return [name for name in PACKAGES if not _is_installed(name)]


def check_spark(what: str) -> None:
    """Check that the packages of Spark are installed, for `what`. Raises click.ClickException with the remedy."""
    missing = missing_packages()
    if missing:
        raise click.ClickException(f"{what} needs Spark: `{INSTALL}` (not installed: {', '.join(missing)})")


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a finder hides it
        return False
