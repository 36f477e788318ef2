"""The table of put statuses is complete, and the tests that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.broker import test_put_statuses
from wheelmq.broker.admission.put_status import CODES, PutStatus

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "put-statuses.md"
ROWS = re.findall(r"^\| ([A-Z_]+) \|.*\| (\d+) \|.*\| `(\w+)` \|$", PAGE.read_text(), re.MULTILINE)


def test_every_status_has_a_row() -> None:
    assert {name for name, _, _ in ROWS} == {"PUT_OK", *PutStatus}


def test_the_codes_equal_those_of_the_broker() -> None:
    found = {name: int(code) for name, code, _ in ROWS if name != "PUT_OK"}
    assert found == {status.value: int(code) for status, code in CODES.items()}


def test_the_tests_that_rows_name_exist() -> None:
    assert all(hasattr(test_put_statuses, test) for _, _, test in ROWS)
