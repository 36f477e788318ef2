"""Two brokers with the same input, one with kernels and one without, and the connections of their clients."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from wheelmq.broker.broker import Broker
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.frame import FrameError
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness

START_MS = 1_700_000_000_000


class CountedIds:
    """Unique ids that are the same in two brokers."""

    def __init__(self) -> None:
        self._counter = itertools.count()

    def next(self) -> str:
        return f"{next(self._counter):032X}"


class Peer:
    """A connection that keeps the bytes sent to it."""

    def __init__(self) -> None:
        from wheelmq.formats.disk.message import Host

        self.peer = Host(b"\x7f\0\0\1", 40_000)
        self.is_open = True
        self.is_full = self.must_wait = False
        self.sends = True
        self.waiting_since: float | None = None
        self.sent = b""

    def send(self, frame: bytes) -> None:
        self.sent += frame

    def close(self) -> None:
        self.is_open = False


class Twins:
    """Two brokers with the same input, one with kernels and one without."""

    def __init__(self, folder: Path, **chosen: object) -> None:
        self.harnesses = []
        for name in ("kernel", "plain"):
            harness = BrokerHarness(folder / name, clock=ManualClock(START_MS), **chosen)
            harness.disk.gives_room_ahead = True  # the plain code takes the space of a step that the kernel lacks
            harness.broker.parts.unique_ids = CountedIds()  # type: ignore[assignment]
            self.harnesses.append(harness)
        kernel, plain = self.brokers
        assert kernel.parts.fast_send is not None
        plain.parts.fast_send = None
        plain.parts.releaser._bulk = None
        plain.parts.batches.fast = None
        self._peers = (Peer(), Peer())

    @property
    def brokers(self) -> tuple[Broker, Broker]:
        kernel, plain = (harness.broker for harness in self.harnesses)
        return kernel, plain

    @property
    def sent(self) -> bytes:
        """All bytes answered to the last stream."""
        return self._peers[0].sent

    @property
    def codes(self) -> list[int]:
        """The codes of the answers to the last stream."""
        found, at, sent = [], 0, self.sent
        while (stop := frame.frame_end(sent, at, len(sent))) is not None:
            found.append(frame.decode(sent, at, stop).code)
            at = stop
        return found

    def receive(self, stream: bytes) -> None:
        outcomes = []
        self._peers = (Peer(), Peer())
        for broker, peer in zip(self.brokers, self._peers, strict=True):
            buffer = bytearray(stream)
            try:
                outcome: object = broker.receive(peer, memoryview(buffer), len(buffer))  # type: ignore[arg-type]
            except FrameError as error:
                outcome = str(error)
            outcomes.append(outcome)
        assert outcomes[0] == outcomes[1]
        self.compare()
        for broker in self.brokers:
            broker.tick()
        assert self._peers[0].sent == self._peers[1].sent

    def compare(self) -> None:
        """Check that log, journal, next queue offsets and slot counts are the same."""
        kernel, plain = (broker.parts.store for broker in self.brokers)
        assert kernel.log.end == plain.log.end
        assert np.array_equal(kernel.journal.rows(), plain.journal.rows())
        assert list(kernel.queues._rows) == list(plain.queues._rows)
        assert np.array_equal(kernel.queues.next_offset, plain.queues.next_offset)
        counted = [broker.parts.timer.congestion.table for broker in self.brokers]
        assert np.array_equal(*counted)
        if kernel.log.end:
            for (_, a, at, stop), (_, b, _, _) in zip(
                kernel.log.files.pieces(kernel.log.start, kernel.log.end),
                plain.log.files.pieces(plain.log.start, plain.log.end),
                strict=True,
            ):
                assert bytes(a.view[at:stop]) == bytes(b.view[at:stop])

    def advance(self, by_ms: int) -> None:
        for harness in self.harnesses:
            harness.clock.advance(by_ms)
        for _ in range(50):
            for broker in self.brokers:
                broker.tick()
        self.compare()

    def close(self) -> None:
        for harness in self.harnesses:
            harness.crash()
