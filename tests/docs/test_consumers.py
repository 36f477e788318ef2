"""docs/operations/consumers.md names each status of a pull, its response code, and a test that forces it."""

from __future__ import annotations

import re
from pathlib import Path

from wheelmq.broker.handlers.pull import PullStatus, code_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations" / "consumers.md").read_text()
ROWS = [line.strip("|").split(" | ") for line in PAGE.splitlines() if line.startswith("| ") and "`test_" in line]


def test_every_status_has_a_row_with_its_code() -> None:
    told = {name.strip(): row[2] for row in ROWS for name in row[0].split(",")}
    assert set(told) == {status.value for status in PullStatus}
    for status in PullStatus:
        codes = [int(number) for number in re.findall(r"\b(?:0$|19|20|21)", told[status].strip())]
        at_0, further_on = code_of(status, 0), code_of(status, 1)
        assert codes == ([at_0] if at_0 == further_on else [at_0, further_on]), status


def test_every_row_names_a_test_that_forces_it() -> None:
    for row in ROWS:
        (file,) = re.findall(r"`(test_\w+\.py)`", row[-1])
        text = (ROOT / "tests" / "unit" / "broker" / file).read_text()
        assert all(name.strip() in text for name in row[0].split(",") if name.strip() != "FOUND"), row[0]
