"""Compilation of kernels, and the cache of compiled code.

The cache is a folder of the user. Its name is a hash of everything that the machine code depends on: the sources of all
kernels and of `formats`, whose constants they compile, their folder, and the machine. A kernel's module imports nothing
else of WheelMQ. Numba's own cache looks at one file at a time, and would miss a change in a kernel that another one
calls. One process compiles at a time. Processes that start meanwhile wait for it, and then load the code.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
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

SOURCES: Final = ("formats/**/*.py", "system/pages.py", "delay/fast/*.py", "broker/fast/*.py")
"""Patterns of the sources that the compiled code depends on, below the package's folder."""


def available() -> bool:
    return MODE != "plain"


@functools.cache
def cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "wheelmq" / "kernels" / source_key(Path(__file__).parents[2])


def source_key(root: Path) -> str:
    """Return the hash of the sources in the package's folder `root`, and of all else that the code depends on."""
    from importlib.metadata import version

    digest = hashlib.sha256(str(root).encode())
    for pattern in SOURCES:
        for source in sorted(root.glob(pattern)):
            digest.update(source.read_bytes())
    parts = (version("numba"), version("numpy"), version("llvmlite"), sys.version, platform.machine(), _cpu())
    digest.update("|".join(parts).encode())
    for name in ("NUMBA_BOUNDSCHECK", "NUMBA_OPT"):
        digest.update(os.environ.get(name, "").encode())
    return digest.hexdigest()[:24]


def _cpu() -> str:
    """Return the processor's model or features. Machine code is made for exactly this processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "flags", "Features")):
                return line
    return platform.processor()


def use_cache() -> None:
    """Set Numba's cache to our folder. This must run before the first kernel is defined."""
    import numba

    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    numba.config.CACHE_DIR = str(folder)


def kernel(function: F) -> F:
    from numba import njit

    compiled: F = njit(cache=True, nogil=False, boundscheck=None, error_model="numpy")(function)
    return compiled


def free_kernel(function: F) -> F:
    """Compile a kernel that runs off the loop without the interpreter's lock, on bytes that no other thread writes."""
    from numba import njit

    compiled: F = njit(cache=True, nogil=True, boundscheck=None, error_model="numpy")(function)
    return compiled


def inline(function: F) -> F:
    from numba import njit

    compiled: F = njit(inline="always", boundscheck=None, error_model="numpy")(function)
    return compiled


def part(function: F) -> F:
    """Compile a function that kernels call. It creates no arrays and counts no references to its arguments.

    Its caller holds the arguments. Counting would cost two atomic operations per array and call.
    """
    from numba import njit

    compiled: F = njit(cache=True, boundscheck=None, error_model="numpy", _nrt=False)(function)
    return compiled


def external(name: str, result: str, arguments: Sequence[str]) -> Any:
    """Return a function of the C library that kernels can call. The types are names of Numba's types.

    `ExternalFunction` is internal to Numba, but a kernel that calls one can be kept in the cache.
    """
    from numba import types

    return types.ExternalFunction(name, getattr(types, result)(*(getattr(types, one) for one in arguments)))


@contextlib.contextmanager
def compiling(say: Callable[[str], None], *lists: str) -> Iterator[None]:
    """Hold the right to compile the kernels of `lists`. `say` gets a message before and after a compilation.

    A file named after its list marks that the cache has all kernels of the list.
    """
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    markers = [folder / name for name in lists]
    with open(folder / "lock", "w") as lock:
        if not all(marker.exists() for marker in markers):
            say("compiling kernels for this machine; this happens once and takes about a minute")
        fcntl.flock(lock, fcntl.LOCK_EX)
        began = time.monotonic()
        fresh = not all(marker.exists() for marker in markers)
        yield
        if fresh:
            for marker in markers:
                marker.touch()
            say(f"kernels compiled in {time.monotonic() - began:.1f} s")


if available():
    use_cache()
