"""Runs the plain code, as `make sim` does. The tests of the kernels compare kernels and plain code."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from wheelmq.formats.kernels import jit


@pytest.fixture(autouse=True, scope="package")
def plain_code() -> Iterator[None]:
    with mock.patch.object(jit, "available", return_value=False):
        yield
