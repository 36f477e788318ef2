"""A client that pulls every queue in order, and commits its offsets."""

from __future__ import annotations

from typing import Final, NamedTuple

from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import Ask, records_in
from wheelmq.testing.simulation.oracle import PAD
from wheelmq.testing.simulation.producer import QUEUES, TOPICS
from wheelmq.testing.simulation.world import World

GROUP: Final = "consumers"
Queue = tuple[str, int]
ALL_QUEUES: Final[tuple[Queue, ...]] = tuple((topic, queue_id) for topic in TOPICS for queue_id in range(QUEUES))


class _SimulatedPull(NamedTuple):
    ask: Ask
    queue: Queue
    offset: int


class Consumer:
    def __init__(self, world: World) -> None:
        self._world = world
        self._connection: FakeConnection | None = None
        self._pulls: list[_SimulatedPull] = []
        self._next: dict[Queue, int] = {}
        self._committed: dict[Queue, int] = {}
        """Committed offsets that the broker has accepted, and that no stop since then may have lost."""
        self._highest: dict[Queue, int] = {}

    @property
    def waits(self) -> int:
        return len(self._pulls)

    def pull_any(self) -> None:
        """Pull a random queue from its next offset. The broker may hold the pull."""
        queue = self._world.randomness.choice(ALL_QUEUES)
        if any(pull.queue == queue for pull in self._pulls):
            return
        self._pull(queue, hold_ms=self._world.randomness.choice((0, 0, 1500)))

    def _pull(self, queue: Queue, hold_ms: int = 0) -> None:
        offset = self._next.get(queue, 0)
        command = self._world.harness.pull_command(*queue, offset, hold_ms=hold_ms)
        self._pulls.append(_SimulatedPull(self._world.harness.submit(command, self._connect()), queue, offset))

    def commit(self) -> None:
        if not self._next:
            return
        queue = self._world.randomness.choice(sorted(self._next))
        answer = self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, queue, commitOffset=self._next[queue])
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self._committed[queue] = self._next[queue]
            self._highest[queue] = max(self._highest.get(queue, 0), self._next[queue])

    def stopped(self) -> None:
        """Note that the broker was killed. It may have lost the last commits, so their state is unknown."""
        self._committed.clear()

    def check_committed(self) -> None:
        """Check the committed offsets, and continue from them, as a starting consumer does."""
        for queue in ALL_QUEUES:
            end = len(self._world.oracle.queue(*queue))
            answer = self._ask(RequestCode.QUERY_CONSUMER_OFFSET, queue)
            if answer is None or answer.code != ResponseCode.SUCCESS:
                assert queue not in self._committed, f"{queue}: the committed offset is lost"
                continue
            found = int(answer.ext["offset"])
            assert found <= min(end, self._highest.get(queue, 0)), (
                f"{queue}: offset {found} of {end} was never committed"
            )
            assert found == self._committed.get(queue, found), f"{queue}: offset {found} is not the committed offset"
            self._next[queue] = found

    def drain(self) -> None:
        for queue in ALL_QUEUES:
            while self._next.get(queue, 0) < len(self._world.oracle.queue(*queue)):
                before = self._next.get(queue, 0)
                self._pull(queue)
                self._world.harness.tick()
                self.collect()
                assert self._next.get(queue, 0) > before, f"{queue}: pulls from {before} make no progress"

    def cut(self) -> None:
        if self._connection is not None and self._connection.is_open:
            self._world.harness.lose(self._connection)

    def collect(self) -> None:
        left = []
        for pull in self._pulls:
            if pull.ask.answer is not None:
                self._answered(pull, pull.ask.answer)
            elif pull.ask.connection.is_open:
                left.append(pull)
        self._pulls = left

    def _answered(self, pull: _SimulatedPull, answer: Command) -> None:
        """Check that a pull returned the records of the log from its offset on, without gaps."""
        stands = self._world.oracle.queue(*pull.queue)
        records = records_in(bytes(answer.body)) if answer.code == ResponseCode.SUCCESS else []
        for i, record in enumerate(records):
            assert record.queue_offset == pull.offset + i, f"{pull.queue}: unexpected offset {record.queue_offset}"
            name = record.message.body.partition(PAD)[0]
            assert name == stands[record.queue_offset].name, f"{pull.queue}: {name!r} came at {record.queue_offset}"
        self._world.counts["pulled"] += len(records)
        if "nextBeginOffset" in answer.ext:
            self._next[pull.queue] = int(answer.ext["nextBeginOffset"])
            assert not records or self._next[pull.queue] == pull.offset + len(records)

    def _ask(self, code: RequestCode, queue: Queue, **fields: object) -> Command | None:
        ext = headers.texts(consumerGroup=GROUP, topic=queue[0], queueId=queue[1], **fields)
        asked = self._world.harness.submit(Command(code=code, ext=ext), self._connect())
        self._world.harness.tick()
        return asked.answer

    def _connect(self) -> FakeConnection:
        if self._connection is None or not self._connection.is_open:
            self._connection = self._world.harness.connect(b"\x0a\0\2\1")
        return self._connection
