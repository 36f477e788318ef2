"""Our client gets the same results from WheelMQ and from Apache RocketMQ in the cases of compat/client.

Apache's servers run only with COMPAT=whole, which `make compat` sets. A case is skipped if our broker does not serve
one of its requests. The reason names the request.
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
    """The results of one run of each case. Cases that allow it run in parallel."""
    folder = tmp_path_factory.mktemp(request.param)
    with KINDS[request.param](folder) as cluster:
        yield {one.name: one for one in asyncio.run(run_suite(cluster, folder / "cases"))}


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_client_case_passes(results: dict[str, Result], name: str, request: pytest.FixtureRequest) -> None:
    result = results[name]
    if result.outcome == "unserved" and "wheelmq" in request.node.name:
        pytest.skip(result.reason)
    assert result.outcome == "passed", result
