"""A name server and a broker for the commands."""

from __future__ import annotations

import pytest

from tests.unit.cli.running import Running, run_with
from tests.unit.client.conftest import Start, servers

__all__ = ["servers"]


@pytest.fixture
def running(servers: Start) -> Running:
    """Run `work(servers, command)` with a name server and a broker."""
    return run_with(servers)
