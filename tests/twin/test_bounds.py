"""The kernels stay within their arrays: tests of this folder once more, every index checked.

Without the check a wrong index reads or writes whatever lies there, and says nothing. To compile all kernels so takes
minutes: `make bounds` does, and every run of the tests those that read the properties of messages, which others write.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

IS_WHOLE = os.environ.get("BOUNDS") == "whole"
DEADLINE_S = 1200 if IS_WHOLE else 400
FOLDER = Path(__file__).parent


@pytest.mark.timeout(DEADLINE_S + 20)
@pytest.mark.skipif(os.environ.get("NUMBA_BOUNDSCHECK") == "1", reason="this is the run with every index checked")
def test_with_every_index_checked() -> None:
    chosen = FOLDER if IS_WHOLE else FOLDER / "test_property_kernels.py"
    command = [sys.executable, "-m", "pytest", str(chosen), "-p", "no:cacheprovider", "--timeout", str(DEADLINE_S)]
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "1"}  # it is to compile soon, not to run fast
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert done.returncode == 0, done.stdout[-6000:]
