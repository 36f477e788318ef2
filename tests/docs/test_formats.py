"""The tables in docs/formats equal those of the declarations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wheelmq.formats.disk import block, checkpoint, done_bits, index, queue_unit, ship, snapshot, timer
from wheelmq.formats.field import Layout
from wheelmq.formats.wire import block_replication, replication

DOCS = Path(__file__).parents[2] / "docs" / "formats"

LAYOUTS: dict[str, Layout] = {
    name: layout
    for module in (
        block,
        checkpoint,
        done_bits,
        index,
        queue_unit,
        ship,
        snapshot,
        timer,
        replication,
        block_replication,
    )
    for name, layout in vars(module).items()
    if isinstance(layout, Layout)
}

WRITTEN = {
    name: table.strip()
    for page in DOCS.glob("*.md")
    for name, table in re.findall(r"<!-- table: (\w+) -->\n(.*?)<!-- end -->", page.read_text(), re.DOTALL)
}


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_a_table_in_the_documents_equals_that_of_the_code(name: str) -> None:
    assert WRITTEN.get(name) == LAYOUTS[name].table()


def test_every_table_in_the_documents_has_a_layout() -> None:
    assert set(WRITTEN) == set(LAYOUTS)
