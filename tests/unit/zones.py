"""The local time zone of a test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def in_zone(name: str) -> Iterator[str]:
    """Set the time zone of the process, and restore it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", name)
        time.tzset()
        yield name
    time.tzset()
