"""The cache of compiled code: its folder, its lock, and the lists of kernels that it has.

The cache is a folder of the user. Its name is a hash of everything that the machine code depends on: the sources of all
kernels and of `formats`, whose constants they compile, their folder, and the machine. A kernel's module imports nothing
else of WheelMQ. Numba's own cache looks at one file at a time, and would miss a change in a kernel that another one
calls.

One process compiles at a time. Processes that start meanwhile wait for it, and then load the code. When the cache has
all kernels of a list, a file of that name lists the files of the code with their sizes. So a start finds a cache that a
power cut or a full disk has damaged. It compiles again.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

SOURCES: Final = ("formats/**/*.py", "system/pages.py", "delay/fast/*.py", "broker/fast/*.py")
"""Patterns of the sources that the compiled code depends on, below the package's folder."""

ALL_LISTS: Final = ("broker", "formats")
"""The lists of kernels that a broker needs: its own, and those of the tasks of the pipeline."""

_FUNCTIONS: Final = "**/*.nbc"
"""Pattern of Numba's files with the code of a function for one list of types."""
_INDEXES: Final = "**/*.nbi"
"""Pattern of Numba's files with the list of types of a function."""


class CacheUnusable(Exception):
    """The cache lacks a kernel, or a file of it is damaged."""


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


def is_complete(*lists: str) -> bool:
    """Return whether the cache has all kernels of `lists`, in files of the right sizes."""
    return all(_is_whole(cache_folder() / name) for name in lists)


def is_compiling() -> bool:
    """Return whether a process compiles into the cache now."""
    try:
        with open(cache_folder() / "lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _is_whole(marker: Path) -> bool:
    try:
        sizes: dict[str, int] = json.loads(marker.read_text())
        return bool(sizes) and all((marker.parent / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


@contextlib.contextmanager
def compiling(say: Callable[[str], None], *lists: str) -> Iterator[None]:
    """Hold the right to compile the kernels of `lists`. `say` gets a message before and after a compilation.

    After an error the cache is empty, so that a damaged file does not fail the next compilation too.
    """
    if not is_complete(*lists):
        say("compiling kernels for this machine; this happens once and takes about half a minute")
    with _locked(fcntl.LOCK_EX) as folder:
        began = time.monotonic()
        is_fresh = not is_complete(*lists)
        if any((folder / name).exists() and not _is_whole(folder / name) for name in lists):
            _empty(folder)
        try:
            yield
        except Exception:
            _empty(folder)
            raise
        if is_fresh:
            for name in lists:
                _mark(folder / name)
            say(f"kernels compiled in {time.monotonic() - began:.1f} s")


@contextlib.contextmanager
def loading(*lists: str) -> Iterator[None]:
    """Let the kernels of `lists` be loaded, and nothing be compiled. Raises CacheUnusable.

    After an error of the load the cache is empty, and a later start compiles again.
    """
    with _locked(fcntl.LOCK_SH):
        if not is_complete(*lists):
            raise CacheUnusable(f"the compiled code in {cache_folder()} is not complete")
        try:
            with _no_compilation():
                yield
            return
        except Exception as error:
            failure = error
    with _locked(fcntl.LOCK_EX) as folder:
        _empty(folder)
    raise CacheUnusable(f"the compiled code in {cache_folder()} cannot be loaded: {failure!r}") from failure


@contextlib.contextmanager
def _locked(kind: int) -> Iterator[Path]:
    """Hold the lock of the cache. Returns its folder."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, kind)
        yield folder


def _mark(marker: Path) -> None:
    """Write the list of all compiled functions with the sizes of their files, in one step.

    An index changes when another list compiles its function for other types, so the list has no index.
    """
    files = sorted(marker.parent.glob(_FUNCTIONS))
    sizes = {path.relative_to(marker.parent).as_posix(): path.stat().st_size for path in files}
    written = marker.with_suffix(".new")
    written.write_text(json.dumps(sizes))
    written.replace(marker)


def _empty(folder: Path) -> None:
    """Remove the compiled code. The lists stay, and are not complete without it."""
    for pattern in (_FUNCTIONS, _INDEXES):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _no_compilation() -> Iterator[None]:
    """Raise CacheUnusable if Numba begins to compile a function, in any thread."""
    from numba.core import event

    class NoCompilation(event.Listener):  # type: ignore[misc] # Numba has no types
        def on_start(self, event: Any) -> None:
            name = event.data["dispatcher"].py_func.__name__
            raise CacheUnusable(f"it has no {name} for these arguments")

        def on_end(self, event: Any) -> None:
            """Do nothing: no compilation ends."""

    with event.install_listener("numba:compile", NoCompilation()):
        yield
