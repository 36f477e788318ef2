"""Apache's own controller elects masters among brokers of WheelMQ (compat/controller)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compat.controller.run import administer, kill_masters


@pytest.mark.java
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.environ.get("COMPAT") != "whole", reason="minutes: COMPAT=whole, as `make compat` sets it")
@pytest.mark.parametrize(("brokers", "controllers"), [(2, 1), (3, 3)])
def test_an_elected_master_has_each_acknowledged_message(brokers: int, controllers: int, tmp_path: Path) -> None:
    assert kill_masters(tmp_path, 5, brokers, controllers, print) == []


@pytest.mark.java
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.environ.get("COMPAT") != "whole", reason="minutes: COMPAT=whole, as `make compat` sets it")
def test_mqadmin_shows_the_state_and_elects_the_slave(tmp_path: Path) -> None:
    assert administer(tmp_path, print) == []
