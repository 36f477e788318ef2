"""Write the lists of docs/operations/settings.md from the schemas: `python -m tests.docs.settings`.

`wheelmq.config.table` has the content, one row for each setting. The page has lines of at most 118 columns.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any, Final

from wheelmq.broker.schema import BROKER
from wheelmq.config import table
from wheelmq.config.keys import Treatment
from wheelmq.config.schema import Schema
from wheelmq.nameserver.settings import NAME_SERVER

PAGE: Final = Path(__file__).parents[2] / "docs" / "operations" / "settings.md"
COLUMNS: Final = 118
LISTS: Final = re.compile(r"(<!-- (our names|keys): (broker|name server) -->\n).*?(<!-- end -->)", re.DOTALL)
NAME: Final = "a text of 1 to 127 characters of printable ASCII, without quotes and backslashes"
INT_MAX: Final = 2**31 - 1
SCHEMAS: Final[dict[str, Schema[Any]]] = {"broker": BROKER, "name server": NAME_SERVER}
NO_BREAK: Final = "\xa0"
"""A space at which a line of the page does not end."""


def with_lists(page: str) -> str:
    """Return `page` with the present lists."""
    makers = {"our names": our_names, "keys": apaches_keys}
    return LISTS.sub(lambda match: match[1] + makers[match[2]](SCHEMAS[match[3]]) + match[4], page)


def our_names(schema: Schema[Any]) -> str:
    """Return a section for each table of a TOML file, with an item for each of its settings."""
    lines: list[str] = []
    section = ""
    for group, key, field, allowed, default, mutable, apache, meaning in _rows(table.our_names(schema)):
        if group != section:
            section = group
            lines += ["", f"### {group}"] if lines else [f"### {group}"]
        names = [field] if field != key else []
        names += [f"Apache's {apache}"] if apache else []
        head = f"**{key}**" + (f" ({', '.join(names)})" if names else "")
        facts = [f"{head}: {_short(allowed)}.", _whole(f"Default: {default or 'none'}.")]
        facts += ["Mutable."] if mutable else []
        lines += _item(" ".join(facts), meaning)
    return "\n".join(lines) + "\n"


def apaches_keys(schema: Schema[Any]) -> str:
    """Return a table of the honoured keys of Apache's, and lists of the others by the reason."""
    honoured: list[str] = []
    others: dict[str, dict[str, list[str]]] = {Treatment.NO_EFFECT: {}, Treatment.REFUSED: {}}
    for name, kind, _, theirs, treatment, ours, last in _rows(table.apaches_keys(schema.keys.values(), schema)):
        if treatment == Treatment.HONOURED:
            honoured.append(f"| {name} | {last} | {theirs if ours != theirs else ''} |".replace("  ", " "))
        else:
            detail = (
                f" ({', '.join(part for part in (kind, theirs) if part)})" if treatment == Treatment.REFUSED else ""
            )
            others[treatment].setdefault(last, []).append(_whole(f"`{name}`{detail}"))
    lines = [
        "### Honoured",
        "| Apache's name | our name | Apache's default, if different |",
        "|---|---|---|",
        *honoured,
    ]
    for title, treatment in (("Without effect", Treatment.NO_EFFECT), ("Refused", Treatment.REFUSED)):
        lines += ["", f"### {title}"]
        for reason, names in others[treatment].items():
            lines += _item(f"**{reason}**:", ", ".join(names))
    return "\n".join(lines) + "\n"


def _short(allowed: str) -> str:
    """Return the allowed values in the short form that the page explains."""
    text = allowed.replace(NAME, "a name").removeprefix("a whole number from ")
    return re.sub(rf"^(-?\d+) to {INT_MAX}\b", r"\1 or more", text)


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def _item(head: str, text: str) -> list[str]:
    """Return the lines of a list item: `head`, and `text` below it."""
    lines = [("- " if n == 0 else "  ") + line for n, line in enumerate(_wrapped(head))]
    return lines + [f"  {line}" for line in _wrapped(text)]


def _whole(text: str) -> str:
    return text.replace(" ", NO_BREAK)


def _wrapped(text: str) -> list[str]:
    lines = textwrap.wrap(text, COLUMNS - 2, break_long_words=False, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines]


if __name__ == "__main__":
    PAGE.write_text(with_lists(PAGE.read_text()))
