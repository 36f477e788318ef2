"""The script of the page, run with Node if Node is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from wheelmq.dashboard import page

NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="there is no Node")
def test_the_script_draws_the_tables_of_the_json(tmp_path: Path) -> None:
    hostile = "</td><script>x</script>"
    section = page.Section("A & B", [[hostile, page.Bar(3, 7)], ["x", "y"]], ["one", "two"], "a note")
    tables = msgspec.json.encode({"problem": "none", "sections": [section, page.Section("C", [])]})
    (tmp_path / "script.js").write_text(page.SCRIPT)
    (tmp_path / "tables.json").write_bytes(tables)
    command = [NODE, Path(__file__).with_name("page.js"), tmp_path / "script.js", tmp_path / "tables.json"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout)
    row = ["tr", ["td", hostile], ["td", ["meter", {"count": 3, "of": 7}]]]
    head = ["tr", ["th", "one"], ["th", "two"]]
    table = ["table", head, row, ["tr", ["td", "x"], ["td", "y"]]]
    drawn = ["section", ["h2", "A & B"], ["p", "a note"], table]
    assert found["main"] == ["main", drawn, ["section", ["h2", "C"], ["table", ""]]]
    assert found["state"] == "none"
    assert "These figures are old" in found["later"] and "it is gone" in found["later"]
    assert found["main_later"] == found["main"] and found["waits"] == 1  # the script continues to poll
