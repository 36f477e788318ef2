"""A live cluster for the connector, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import Live, live


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Live]:
    with live(tmp_path) as running:
        yield running


@pytest.fixture
def own_servers(servers: Live) -> Live:
    """Servers for a test that starts and stops brokers. They are fresh for each test."""
    return servers
