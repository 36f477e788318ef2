"""Decide whether the targets also check the kernels.

Under coverage the kernels run as plain Python (NUMBA_DISABLE_JIT=1), so that their branches are visible. In the tests
they run as machine code. With WHEELMQ_KERNELS=plain alone they do not run.
"""

from __future__ import annotations

import os

from wheelmq.formats.kernels import jit


def runs_kernels() -> bool:
    """Return whether kernels can be called."""
    return jit.available() or os.environ.get("NUMBA_DISABLE_JIT") == "1"
