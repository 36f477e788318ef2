"""Write ARCHITECTURE's table of imports from the test that enforces it: `python -m tests.docs.architecture`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.tidy.test_imports import BELOW, SEES_MORE

PAGE: Final = Path(__file__).parents[2] / "ARCHITECTURE.md"
TABLE: Final = re.compile(r"(?<=<!-- imports -->\n).*?(?=<!-- end -->)", re.DOTALL)


def table() -> str:
    """Return the table: one row per package, then one row per module with an exception."""
    lines = ["| package | imports |", "|---|---|"]
    for package, below in BELOW.items():
        if not package.startswith("__"):
            lines.append(f"| `{package}` | {', '.join(name for name in BELOW if name in below) or 'none'} |")
    for module, more in SEES_MORE.items():
        lines.append(f"| `{module}`, in addition | {', '.join(sorted(more))} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """Return `page` with the present table."""
    return TABLE.sub(table(), page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
