"""Compare the commit logs of two closed stores."""

from __future__ import annotations

from pathlib import Path

from tests.crash.records import BadBytes, Records


def difference(one: Path, other: Path) -> str | None:
    """Return the first difference of the records in two stores, or None. The logs may begin at different places."""
    try:
        mine, theirs = Records(one / "commitlog", ""), Records(other / "commitlog", "")
    except BadBytes as problem:
        return f"a log does not read: {problem}"
    if mine.end != theirs.end:
        return f"the log of {one} ends at {mine.end}, that of {other} at {theirs.end}"
    for path in sorted((one / "commitlog").iterdir()):
        copy = other / "commitlog" / path.name
        if copy.exists() and copy.read_bytes() != path.read_bytes():
            return f"{copy} has other bytes than {path}"
    return None
