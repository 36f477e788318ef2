"""The messages that a case sends to a master: each kind that the log can hold."""

from __future__ import annotations

import zlib
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from compat.golden.life import Sender, now_ms
from wheelmq.net.sync_connection import SyncConnection

LEVEL_4_MS: Final = 30_000
COMMIT: Final = 8
ROLL_BACK: Final = 12


@dataclass
class Sent:
    """The bodies of the sent messages."""

    at_once: list[bytes] = field(default_factory=list)
    """Bodies that arrive at once, in the order of their queue."""
    due_ms: dict[bytes, int] = field(default_factory=dict)
    """Due times of delayed messages, by body."""
    never: list[bytes] = field(default_factory=list)
    """Bodies of half messages that are not committed."""

    def __add__(self, later: Sent) -> Sent:
        return Sent(self.at_once + later.at_once, self.due_ms | later.due_ms, self.never + later.never)

    @property
    def count(self) -> int:
        """The number of messages that arrive."""
        return len(self.at_once) + len(self.due_ms)


def send_all(address: str, name: str, count: int, *, timer_ms: int, step_ms: int = 10, body_bytes: int = 100) -> Sent:
    """Send `count` messages of each kind to T. A timer is due after `timer_ms`, and each further one `step_ms` later.

    Raises CallError, and Refused for any answer but SUCCESS.
    """
    sent = Sent()
    with closing(SyncConnection(address)) as link:
        sender = Sender(link, zlib.crc32(name.encode()) << 20)
        for i in range(count):
            plain, committed, rolled_back = (_body(name, kind, i, body_bytes) for kind in ("plain", "done", "back"))
            batch = [_body(name, f"batch{k}", i, body_bytes) for k in range(3)]
            sender.send(plain, TAGS="t")
            sender.batch(batch)
            sender.transaction(committed, COMMIT)
            sender.transaction(rolled_back, ROLL_BACK)
            sent.at_once += [plain, *batch, committed]
            sent.never.append(rolled_back)
            timer, level = _body(name, "timer", i, body_bytes), _body(name, "level", i, body_bytes)
            due_ms = now_ms() + timer_ms + step_ms * i
            sender.send(timer, due_ms=due_ms, TIMER_DELIVER_MS=str(due_ms))
            sent.due_ms[timer] = due_ms
            sent.due_ms[level] = now_ms() + LEVEL_4_MS
            sender.send(level, DELAY="4")
    return sent


def _body(name: str, kind: str, number: int, size: int) -> bytes:
    return f"{name}-{kind}-{number} ".encode().ljust(size, b".")
