"""Our client finds with WheelMQ what it finds with Apache RocketMQ: the cases of compat/client.

Apache's servers run with COMPAT=whole, or as `make compat` runs the suite. A case that needs a request which our broker
does not serve is skipped, and says which.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from compat.client.case import CASES
from compat.client.run import Result, run_suite
from compat.client.servers import KINDS

TARGETS = [pytest.param("wheelmq")]
if os.environ.get("COMPAT") == "whole":
    TARGETS.append(pytest.param("apache", marks=[pytest.mark.java]))

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", params=TARGETS)
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Result]]:
    """Each case ran once, those that may side by side."""
    folder = tmp_path_factory.mktemp(request.param)
    with KINDS[request.param](folder) as cluster:
        yield {one.name: one for one in asyncio.run(run_suite(cluster, folder / "cases"))}


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_case_holds(results: dict[str, Result], name: str, request: pytest.FixtureRequest) -> None:
    result = results[name]
    if result.outcome == "unserved" and "wheelmq" in request.node.name:
        pytest.skip(result.reason)
    assert result.outcome == "passed", result
