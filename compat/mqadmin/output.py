"""The comparable part of a command's output, without times, addresses, ids and stack traces."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from compat.mqadmin.steps import Step

ALWAYS: Final = (
    (r"\x00", ""),
    (r"\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d([,.:]\d+)?|\b\d{17}\b", "<time>"),
    (r"\b1[789]\d{11}\b", "<time>"),
    (r"\b[0-9A-F]{32}\b", "<id>"),
    (r"\d+\.\d+\.\d+\.\d+@[\w#@]+", "<client>"),
    (r"\b\d+\.\d+\.\d+\.\d+\b(?!:)", "<ip>"),
    (r"^\s+at .*|^\s+\.\.\. \d+ (?:more|common frames).*|^java\.lang\.Exception: .*stack.*", "<frame>"),
    (r"For more information, please visit the url.*|See https?://\S+ for further details.*", ""),
    (r"/(?:\S+/)*(?:store|home)\S*", "<path>"),
)


def normalised(step: Step, text: str, known: dict[str, str]) -> str:
    """Return the lines that count. `known` are the addresses of this run, by name."""
    for name in ("broker", "namesrv"):
        text = text.replace(known[name], f"<{name}>")
    text = re.sub(r"127\.0\.0\.1:\d+", "<address>", text.replace(known["home"], "<home>"))
    if step.is_json or step.file:
        return json.dumps(
            _plain(json.loads(_standard(text)), step.without), indent=1, sort_keys=True, ensure_ascii=False
        )
    lines = []
    for line in text.splitlines():
        for pattern, instead in ALWAYS:
            line = re.sub(pattern, instead, line)
        line = " ".join(line.split())
        for pattern, instead in step.masks:
            line = re.sub(pattern, instead, line).strip()
        if line and line != "<frame>":
            lines.append(line)
    return "\n".join(sorted(lines) if step.is_set else lines)


def produced(step: Step, text: str, home: Path) -> str:
    """Return the text that the step compares: its output, or the file that it wrote."""
    if not step.file:
        return text
    found = home / step.file
    return found.read_text() if found.exists() else json.dumps({"no file": text})


def _standard(text: str) -> str:
    """Return JSON with quotes around each key. Apache writes numbers as keys without quotes."""
    return re.sub(r"([{,]\s*)(\d+)\s*:", r'\1"\2":', text)


def _plain(value: object, without: Collection[str]) -> object:
    """Return `value` without fields that vary or do not count, and with sorted lists."""
    if isinstance(value, dict):
        return {key: _masked(key, _plain(one, without)) for key, one in value.items() if key not in without}
    if isinstance(value, list):
        return sorted((_plain(one, without) for one in value), key=lambda one: json.dumps(one, sort_keys=True))
    return value


def _masked(key: str, value: object) -> object:
    if key in ("timestamp", "counter", "stateVersion", "time", "exportTime"):
        return "<number>"
    return "<rate>" if isinstance(value, float) or ("Tps" in key and isinstance(value, str)) else value
