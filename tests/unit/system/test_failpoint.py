"""A failpoint ends the process once, also if several threads pass it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

LINES = """
import threading
from wheelmq.system import failpoint
telling = threading.Event()
def tell(name, tell=failpoint._report):
    telling.set()
    if threading.current_thread() is not other:
        other.join()
    tell(name)
failpoint._report = tell
failpoint.os.kill = lambda *_, kill=failpoint.os.kill: threading.current_thread() is other or kill(*_)
def pass_too():
    telling.wait()
    failpoint.reach("here")
failpoint.reach("here")
other = threading.Thread(target=pass_too)
other.start()
failpoint.reach("here")
"""


def test_a_second_thread_at_a_failpoint_adds_no_line_to_the_log(tmp_path: Path) -> None:
    """A reader of the log would count two lines as two deaths."""
    told = tmp_path / "log"
    environment = {**os.environ, "WHEELMQ_FAILPOINTS": "here=2", "WHEELMQ_FAILPOINT_LOG": str(told)}
    done = subprocess.run([sys.executable, "-c", LINES], env=environment, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert [line.split()[1] for line in told.read_text().splitlines()] == ["here"]
