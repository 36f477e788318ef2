"""A hint at the end of a process that starts a consumer and does not wait for messages.

A consumer does not keep its process alive. A script that calls `start` and nothing else ends at once, without an error
and without a message.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from typing import Final, NamedTuple

from wheelmq.system.clock import Clock

HINT_S: Final = 10.0
"""A process that lives longer after the start of its consumer does something else, and gets no hint."""
log = logging.getLogger(__name__)


class Running(NamedTuple):
    """A consumer that was started, and not stopped."""

    group: str
    clock: Clock
    began_s: float
    process_id: int
    """The process of its start. The children of a fork have no thread for it."""


class UnstoppedConsumers:
    """The consumers that run in this process."""

    def __init__(self) -> None:
        self._running: dict[int, Running] = {}
        self._is_registered = False

    def add(self, consumer: object, group: str, clock: Clock) -> None:
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self.log_hints)
        self._running[id(consumer)] = Running(group, clock, clock.monotonic(), os.getpid())

    def remove(self, consumer: object) -> None:
        self._running.pop(id(consumer), None)

    def log_hints(self) -> None:
        """Log a hint for each consumer that has just been started. The interpreter calls this at its end.

        After an exception, the traceback names the reason of the end. In an interactive session, the user ends it.
        """
        if hasattr(sys, "last_value") or hasattr(sys, "ps1"):
            return
        for one in self._running.values():
            if one.process_id == os.getpid() and one.clock.monotonic() - one.began_s < HINT_S:
                log.warning(
                    "the process ended right after the start of the consumer of group %s, which does not keep it "
                    "alive. Call run_forever() to consume until SIGTERM or Ctrl-C, or stop() at the end",
                    one.group,
                )


UNSTOPPED: Final = UnstoppedConsumers()
