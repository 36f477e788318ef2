"""The offsets of the level queues in delayOffset.json."""

from __future__ import annotations

import json
from pathlib import Path


def offsets(store: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((store / "config" / "delayOffset.json").read_text())["offsetTable"]
    return found
