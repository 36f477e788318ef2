"""Runs the plain code, as `make sim` does: the kernels' own tests hold them equal to it."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from wheelmq.formats.kernels import jit


@pytest.fixture(autouse=True, scope="package")
def plain_code() -> Iterator[None]:
    with mock.patch.object(jit, "available", return_value=False):
        yield
