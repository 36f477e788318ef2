"""How kernels are compiled and where the compiled code is kept.

The cache is a folder of the user's own, named by a hash of all kernel sources and of what the machine code depends
on: Numba's own cache looks at one file at a time and would miss a change in a kernel that another one calls.
One process compiles at a time; others that start meanwhile wait for it and then load.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

MODE: Final = os.environ.get("WHEELMQ_KERNELS", "compiled")
"""`compiled`, or `plain` to run the twins."""

_FOLDER = Path(__file__).parent


def available() -> bool:
    """Whether kernels are to be used."""
    return MODE != "plain"


def cache_folder() -> Path:
    """Where the compiled code of these sources on this machine is kept."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "wheelmq" / "kernels" / _key()


def _key() -> str:
    from importlib.metadata import version

    digest = hashlib.sha256()
    for source in sorted(_FOLDER.glob("*.py")):
        digest.update(source.read_bytes())
    parts = (version("numba"), version("numpy"), version("llvmlite"), sys.version, platform.machine(), _cpu())
    digest.update("|".join(parts).encode())
    for name in ("NUMBA_BOUNDSCHECK", "NUMBA_OPT"):
        digest.update(os.environ.get(name, "").encode())
    return digest.hexdigest()[:24]


def _cpu() -> str:
    """The processor's model and features: machine code is made for exactly this one."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "flags", "Features")):
                return line
    return platform.processor()


def _use_cache() -> None:
    """Point Numba at our folder; must run before the first kernel is defined."""
    import numba

    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    numba.config.CACHE_DIR = str(folder)


def kernel(function: F) -> F:
    """Compile `function` when it is first called, or load it from the cache."""
    from numba import njit

    compiled: F = njit(cache=True, nogil=False, boundscheck=None, error_model="numpy")(function)
    return compiled


def free_kernel(function: F) -> F:
    """A kernel that other threads run beside: for work off the loop, on bytes that nobody writes meanwhile."""
    from numba import njit

    compiled: F = njit(cache=True, nogil=True, boundscheck=None, error_model="numpy")(function)
    return compiled


def inline(function: F) -> F:
    """A piece of kernels, compiled into its callers."""
    from numba import njit

    compiled: F = njit(inline="always", boundscheck=None, error_model="numpy")(function)
    return compiled


def part(function: F) -> F:
    """A piece of kernels, called by them. It makes no arrays, and counts no references to those it is given: whoever
    calls it holds them, and counting is two atomic operations for each array in each call."""
    from numba import njit

    compiled: F = njit(cache=True, boundscheck=None, error_model="numpy", _nrt=False)(function)
    return compiled


def external(name: str, result: str, arguments: Sequence[str]) -> Any:
    """A function of the C library that kernels call, by the names of Numba's types.

    Numba means `ExternalFunction` for itself; it is what has a call compiled that can be kept in the cache.
    """
    from numba import types

    return types.ExternalFunction(name, getattr(types, result)(*(getattr(types, one) for one in arguments)))


@contextlib.contextmanager
def compiling(say: Callable[[str], None]) -> Iterator[None]:
    """Hold the right to compile; `say` is told when that takes long enough to be noticed."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    marker = folder / "complete"
    with open(folder / "lock", "w") as lock:
        if not marker.exists():
            say("compiling kernels for this machine; this happens once and takes about a minute")
        fcntl.flock(lock, fcntl.LOCK_EX)
        began = time.monotonic()
        fresh = not marker.exists()
        yield
        if fresh:
            marker.touch()
            say(f"kernels compiled in {time.monotonic() - began:.1f} s")


if available():
    _use_cache()
