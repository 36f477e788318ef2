"""The kernels of a broker's process: loaded before it listens, or compiled while it serves.

If the cache has the compiled code, a start loads it in 0.3 s. Otherwise the broker listens at once and runs the twins.
A child process compiles into the cache, a worker thread loads the code, and a tick puts the kernels to use. If the
child fails, the broker keeps running the twins, and its next start tries again.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Final

from wheelmq.broker.fast.warm import load, warm
from wheelmq.broker.kernel_use import KernelState, KernelUse
from wheelmq.formats.kernels import jit
from wheelmq.formats.kernels.cache import ALL_LISTS, CacheUnusable, is_complete
from wheelmq.system.clock import Clock
from wheelmq.system.memory import without_collections
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

COMPILER: Final = ("-P", "-m", "wheelmq.broker.kernel_compiler")


class CompilerFailed(Exception):
    """The child process ended without compiled code."""


class KernelCompiler:
    """A child process that compiles the kernels into the cache."""

    def __init__(self) -> None:
        """Start the process. Raises OSError."""
        self._process = subprocess.Popen(
            (sys.executable, *COMPILER),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "WHEELMQ_KERNELS": jit.COMPILED},
            process_group=0,  # Ctrl-C at the terminal is for the broker
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> None:
        """Wait for the end of the process. Raises CompilerFailed."""
        assert self._process.stdin is not None and self._process.stderr is not None
        with self._process.stdin, self._process.stderr as errors:  # the compiler ends if its input ends
            output = errors.read().decode(errors="replace")
            code = self._process.wait()
        if code:
            how = f"the compiler ended with code {code}" if code > 0 else f"signal {-code} ended the compiler"
            raise CompilerFailed(": ".join((how, *output.splitlines()[-1:])))

    def end(self) -> None:
        """End the process, if it runs. Another thread may wait for it."""
        self._process.kill()


class Kernels:
    """Loads the kernels of this process, or has them compiled. Its methods are called on the loop."""

    def __init__(
        self, use: KernelUse, clock: Clock, make_worker: Callable[[], Worker], *, may_compile: bool = True
    ) -> None:
        """`make_worker` returns the worker that waits for the compiler and loads its code.

        With `may_compile=False`, a process without compiled kernels runs the twins until its end.
        """
        self.use = use
        self._may_compile = may_compile
        self._clock = clock
        self._make_worker = make_worker
        self._worker: Worker | None = None
        self._compiler: KernelCompiler | None = None
        self._began_s = 0.0
        self._is_stopping = False
        self._lock = threading.Lock()
        """Guards the next two, which the worker uses too."""
        self._is_loaded = False
        self._serves = False

    @property
    def compiler_pid(self) -> int | None:
        """The process that compiles; None if there is none."""
        return None if self._compiler is None else self._compiler.pid

    def begin(self) -> None:
        """Load the kernels, or begin to compile them in a child process. Call it before the store is opened."""
        if jit.MODE == jit.PLAIN:
            return
        if not self._may_compile:
            if not self._load_compiled():
                jit.hold_back()
                self.use.state = KernelState.OFF
                return
        elif jit.MODE != jit.BACKGROUND:
            warm(log.warning)
        elif not self._load_compiled():
            self._compile()
            return
        jit.put_to_use()
        self.use.state = KernelState.IN_USE

    def _load_compiled(self) -> bool:
        """Load the kernels if the cache has all of them. Returns whether it has."""
        if not is_complete(*ALL_LISTS):
            return False
        try:
            with without_collections():
                load()
        except CacheUnusable as error:
            if self._may_compile:
                log.warning("%s: the broker compiles its kernels again", error)
            return False
        return True

    def _compile(self) -> None:
        jit.hold_back()
        self.use.state, self._began_s = KernelState.COMPILING, self._clock.monotonic()
        log.info(
            "there are no compiled kernels for this machine. The broker runs the plain Python code, and a child "
            "process compiles the kernels; this takes about half a minute, once"
        )
        try:
            self._compiler = KernelCompiler()
        except OSError as error:
            self._fail(error)
            return
        self._worker = self._make_worker()
        self._worker.submit(self._wait_and_load, self._note_end)

    def _wait_and_load(self) -> None:
        """Load the kernels once they are compiled. Raises CompilerFailed, CacheUnusable."""
        assert self._compiler is not None
        self._compiler.wait()
        load()
        with self._lock:
            self._is_loaded = True
            if not self._serves:
                jit.put_to_use()  # a long recovery goes on with kernels

    def _note_end(self, result: Exception | None) -> None:
        assert self._worker is not None
        self._worker.close()
        self._worker = self._compiler = None
        if result is not None and not self._is_stopping:
            self._fail(result)

    def _fail(self, error: Exception) -> None:
        self.use.state, self.use.problem = KernelState.FAILED, str(error)
        log.warning(
            "the kernels could not be compiled: %s. The broker runs the plain Python code, which takes many times as "
            "long for each message. The next start tries again",
            error,
        )

    def begin_to_serve(self) -> None:
        """From now on, only `poll` puts kernels to use: the broker is about to serve requests."""
        with self._lock:
            self._serves = True

    def poll(self, put_to_use: Callable[[], object]) -> None:
        """Put the kernels to use once they are loaded. A tick calls this, between two rounds."""
        if self._is_loaded and self.use.state is KernelState.COMPILING:
            jit.put_to_use()
            put_to_use()
            self.use.state = KernelState.IN_USE
            log.info("the kernels are in use %.1f s after the start", self._clock.monotonic() - self._began_s)

    def stop(self) -> None:
        """End the compiler, and wait for the worker. May run on another thread, once no round runs."""
        self._is_stopping = True
        compiler, worker = self._compiler, self._worker  # the loop may forget them meanwhile
        if compiler is not None:
            compiler.end()
        if worker is not None:
            worker.close()
