"""The use of the disk of a store, and whether it makes the broker reject messages."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wheelmq.cli import stores

if TYPE_CHECKING:
    from wheelmq.broker.settings import BrokerSettings


class DiskUse(NamedTuple):
    """The bytes of a file system."""

    total: int
    used: int
    free: int
    """The free bytes that a user without special rights can take."""

    @classmethod
    def of(cls, folder: Path) -> DiskUse:
        """Return the use of the file system of `folder`, which need not exist. Raises OSError."""
        return cls(*shutil.disk_usage(stores.existing(folder)))


def disk_problem(settings: BrokerSettings) -> str | None:
    """Return why the broker rejects messages because of the disk of its store; None if it does not.

    Raises OSError if the disk cannot be read.
    """
    from wheelmq.broker import start_warnings

    use = DiskUse.of(settings.store.path)
    is_new = stores.is_new(settings.store.path)
    return start_warnings.disk_problem(settings, total=use.total, used=use.used, free=use.free, is_new=is_new)
