"""The fixture of the tests that compare two brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.twin.twins import Twins


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def twins(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Twins]:
    pair = Twins(tmp_path, flush_mode=request.param, log_file_bytes=1 << 17)
    yield pair
    pair.close()
