"""The kernels stay within their arrays: the tests of this folder run again with every index checked.

Without the check, a wrong index silently reads or writes other memory. Only `make bounds` compiles all kernels with
the check, which takes minutes. Each test run checks those that read message properties, because clients write them.
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
def test_kernels_pass_their_tests_with_every_index_checked() -> None:
    chosen = FOLDER if IS_WHOLE else FOLDER / "test_property_kernels.py"
    command = [sys.executable, "-m", "pytest", str(chosen), "-p", "no:cacheprovider", "--timeout", str(DEADLINE_S)]
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "1"}  # quick compilation matters, not speed
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert done.returncode == 0, done.stdout[-6000:]
