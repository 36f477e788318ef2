"""Write the tables of docs/operations/settings.md from the schemas: `python -m tests.docs.settings`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from wheelmq.broker.schema import BROKER
from wheelmq.config import table
from wheelmq.nameserver.settings import NAME_SERVER

PAGE: Final = Path(__file__).parents[2] / "docs" / "operations" / "settings.md"


def with_tables(page: str) -> str:
    """Return `page` with the present tables."""
    for part, schema in (("broker", BROKER), ("name server", NAME_SERVER)):
        for title, rows in (
            (f"The {part}, by our names", table.our_names(schema)),
            (f"Apache's keys of the {part}", table.apaches_keys(schema.keys.values(), schema)),
        ):
            section = re.compile(rf"(^## {title}\n(?:(?!\||## ).*\n)*)(?:\|.*\n)+", re.MULTILINE)
            page, count = section.subn(lambda match, rows=rows: match.group(1) + rows, page)
            assert count == 1, title
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
