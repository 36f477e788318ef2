"""ARCHITECTURE.md shows the imports that tests/tidy allows."""

from __future__ import annotations

from tests.docs.architecture import PAGE, TABLE, with_table


def test_the_table_of_imports_equals_the_enforced_table() -> None:
    page = PAGE.read_text()
    assert len(TABLE.findall(page)) == 1
    assert with_table(page) == page, "run python -m tests.docs.architecture"
