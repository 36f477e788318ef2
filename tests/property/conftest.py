"""Runs the plain code. The tests of the kernels compare kernels and plain code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest

from wheelmq.formats.kernels import jit

COMPILED = os.environ.get("WHEELMQ_PROPERTY_KERNELS", "") == "compiled"


@pytest.fixture(autouse=True, scope="package")
def plain_code() -> Iterator[None]:
    """Turn the kernels off, unless WHEELMQ_PROPERTY_KERNELS=compiled asks for them."""
    with mock.patch.object(jit, "available", return_value=COMPILED):
        yield
