"""Senders that take whichever broker accepts messages, and the check of what arrived."""

from __future__ import annotations

import contextlib
import random
import threading
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Final

from compat.golden.life import Sender, now_ms
from compat.replication.reading import read
from compat.replication.servers import until
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.sync_connection import SyncConnection

PAUSE_S: Final = 0.002
TIMER_SHARE: Final = 0.3
DELAYS_MS: Final = (100, 3000)


class Load:
    """One sender in a thread. It sends each message once, so a message without an answer may arrive or not."""

    def __init__(self, addresses: Sequence[str], seed: int = 0) -> None:
        self._addresses = tuple(addresses)
        self._random = random.Random(seed)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: list[bytes] = []
        self.due_ms: dict[bytes, int] = {}
        self.acknowledged_at = 0.0
        """Start of the last acknowledged send, in monotonic seconds."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        turn, number = 0, 0
        while not self._ends.is_set():
            link = SyncConnection(self._addresses[turn % len(self._addresses)])
            sender = Sender(link, zlib.crc32(b"%d" % turn) << 32)
            try:
                while not self._ends.is_set():
                    number += 1
                    self._send(sender, b"message-%d" % number)
                    time.sleep(PAUSE_S)
            except (CallError, Refused):
                turn += 1
                time.sleep(PAUSE_S)
            finally:
                link.close()

    def _send(self, sender: Sender, body: bytes) -> None:
        began = time.monotonic()
        if self._random.random() < TIMER_SHARE:
            due_ms = now_ms() + self._random.randrange(*DELAYS_MS)
            self.due_ms[body] = due_ms
            sender.send(body, due_ms=due_ms, TIMER_DELIVER_MS=str(due_ms))
        else:
            sender.send(body)
        self.acknowledged.append(body)
        self.acknowledged_at = began

    def wait_for_acknowledgement(self, began: float, deadline_s: float = 60.0) -> float:
        """Return the seconds from `began` to the first send after it that is acknowledged."""
        until("an acknowledged send", lambda: self.acknowledged_at > began, deadline_s)
        return time.monotonic() - began


def check(address: str, load: Load) -> dict[str, int]:
    """Wait until each acknowledged message is in its queue, and count faults."""

    def counts() -> Counter[bytes]:
        return Counter(record.message.body for record in read(address))

    wanted = set(load.acknowledged)
    with contextlib.suppress(TimeoutError):  # the counts show the loss
        until("the acknowledged messages arrive", lambda: wanted <= counts().keys(), 15.0)
    records = read(address)
    came = Counter(record.message.body for record in records)
    early = [one for one in records if one.store_ms < load.due_ms.get(one.message.body, 0)]
    return {
        "acknowledged": len(wanted),
        "lost": len(wanted - came.keys()),
        "twice": sum(count > 1 for count in came.values()),
        "early": len(early),
    }
