"""The distribution of tests over processes. `make test` has 3 processes, because tests often wait."""

from __future__ import annotations

import os

import pytest

from tests.conftest import FOLDER, LONG

numbers: list[int] = []


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="all is in one process")
@pytest.mark.parametrize("number", range(4))
def test_all_tests_of_a_file_run_in_one_process(number: int) -> None:
    """So a module fixture runs once."""
    assert numbers == list(range(number))
    numbers.append(number)


def test_the_files_listed_as_long_exist() -> None:
    assert [name for name in LONG if not (FOLDER / name).exists()] == []
