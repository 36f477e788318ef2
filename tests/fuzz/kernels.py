"""Whether the targets look at the kernels too.

By coverage the kernels run as the Python that they are written in (NUMBA_DISABLE_JIT=1), so that their branches are
seen; in the tests as machine code; with WHEELMQ_KERNELS=plain, and nothing else said, not at all.
"""

from __future__ import annotations

import os

from wheelmq.formats.kernels import jit


def runs_kernels() -> bool:
    """Whether kernels can be called."""
    return jit.available() or os.environ.get("NUMBA_DISABLE_JIT") == "1"
