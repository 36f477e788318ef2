"""How tests are spread over processes, with more than one (`make test` has 3: much of the time they wait)."""

from __future__ import annotations

import os

import pytest

from tests.conftest import FOLDER, LONG

numbers: list[int] = []


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="all is in one process")
@pytest.mark.parametrize("number", range(4))
def test_a_file_is_with_one_process(number: int) -> None:
    """So what a module's fixture makes is made once."""
    assert numbers == list(range(number))
    numbers.append(number)


def test_what_takes_longest_is_there() -> None:
    assert [name for name in LONG if not (FOLDER / name).exists()] == []
