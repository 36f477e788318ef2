"""Whether a broker runs its kernels, for monitoring."""

from __future__ import annotations

from enum import StrEnum

from wheelmq.formats.kernels import jit


class KernelState(StrEnum):
    OFF = "off"
    """The process runs the twins, as WHEELMQ_KERNELS says, or because a TestBroker compiles nothing."""
    COMPILING = "compiling"
    """The process runs the twins until the kernels are compiled and loaded."""
    IN_USE = "in_use"
    FAILED = "failed"
    """The process runs the twins until its next start, because the compilation failed."""


class KernelUse:
    """Whether a broker runs its kernels, and why not."""

    def __init__(self) -> None:
        self.state = KernelState.IN_USE if jit.available() else KernelState.OFF
        self.problem = ""
        """Why the compilation failed. Empty in other states."""
