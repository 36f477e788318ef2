"""The script of the page, run with Node if Node is installed. test_browser.py runs it in a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from wheelmq.dashboard import page

NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="there is no Node")
def test_the_script_replaces_the_parts_that_changed(tmp_path: Path) -> None:
    (tmp_path / "script.js").write_bytes(page.asset("refresh.js"))
    command = [NODE, Path(__file__).with_name("page.js"), tmp_path / "script.js"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["title"] == "new"
    assert found["replaced"] == [0, 1], "an unchanged banner is not announced again"
    assert found["stays_open"], "details that a person opened stay open"
    assert found["stale"] == [
        False,
        "These figures are old: the dashboard does not answer (it is gone). Is wheelmq up running?",
    ]
    assert found["paused"] == [False, "true", 0], "a paused page loads nothing"
    assert (found["reloads"], found["waits"]) == (1, 0), "after the end of a session the login is shown"
