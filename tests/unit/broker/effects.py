"""The functions of a test module that show the effects of keys of Apache's broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Effect = Callable[[Path], None]
"""A function that gets a folder and fails if its keys have no effect."""


class Effects:
    """The effects that a test module shows, by key."""

    def __init__(self) -> None:
        self.by_key: dict[str, Effect] = {}

    def shows(self, *keys: str) -> Callable[[Effect], Effect]:
        """Register a function for `keys`."""

        def register(effect: Effect) -> Effect:
            self.by_key.update(dict.fromkeys(keys, effect))
            return effect

        return register

    def each(self) -> pytest.MarkDecorator:
        """Parametrize a test with the registered functions as `test`."""
        tests = sorted(set(self.by_key.values()), key=lambda test: test.__name__)
        return pytest.mark.parametrize("test", tests, ids=lambda test: test.__name__)
