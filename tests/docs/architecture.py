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
    packages = [name for name in BELOW if not name.startswith("__")]
    for package in packages:
        below = [name for name in packages if name in BELOW[package]]
        others = [name for name in packages if name not in below and name != package]
        text = f"all except {', '.join(others)}" if len(others) <= 3 else ", ".join(below) or "none"
        lines.append(f"| `{package}` | {text} |")
    for module, more in SEES_MORE.items():
        lines.append(f"| `{module}`, in addition | {', '.join(sorted(more))} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """Return `page` with the present table."""
    return TABLE.sub(table(), page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
