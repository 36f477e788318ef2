"""The page on filters agrees with the code."""

from __future__ import annotations

import re
from pathlib import Path

from wheelmq.filter.expression import DEPTH_MAX, TEXT_TESTS
from wheelmq.filter.grammar import CACHED, CHARS_MAX, KEYWORDS

TEXT = (Path(__file__).parents[2] / "docs" / "operations" / "filters.md").read_text()


def test_the_page_has_the_limits_and_keywords_of_the_code() -> None:
    assert f"{CHARS_MAX:,} characters and nest {DEPTH_MAX} deep" in TEXT
    assert re.search(rf"the last\n{CACHED} of them", TEXT)
    assert all(word in TEXT for word in KEYWORDS | TEXT_TESTS.keys())
