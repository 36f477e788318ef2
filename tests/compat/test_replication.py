"""WheelMQ and Apache RocketMQ replicate in both directions (compat/replication). Each case has brokers of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compat.apache.apache import VERSIONS
from compat.replication.cases import CASES, Measures, Place
from compat.replication.run import run_case

README = Path(__file__).parents[2] / "compat" / "replication" / "README.md"


@pytest.mark.java
@pytest.mark.timeout(400)
@pytest.mark.skipif(os.environ.get("COMPAT") != "whole", reason="minutes: COMPAT=whole, as `make compat` sets it")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_slave_follows_a_master_of_the_other_kind(
    case: Callable[[Place], Measures], version: str, tmp_path: Path
) -> None:
    result = run_case(case, tmp_path / "case", version)
    assert result.outcome == "passed", result.reason


def test_the_readme_names_each_case() -> None:
    text = README.read_text()
    assert [case.__name__ for case in CASES if f"`{case.__name__}`" not in text] == []
