"""The clients of a cluster. Each has one broker in view that it takes for the master, rightly or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message_id import parse_offset_message_id
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.cluster.member import Member
from wheelmq.testing.cluster.oracle import ClusterOracle, Half, TransactionEnd
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import Ask, records_in
from wheelmq.testing.simulation.consumer import ALL_QUEUES, Queue
from wheelmq.testing.simulation.oracle import PAD, SendAnswer
from wheelmq.testing.simulation.producer import QUEUES, STORED_UNSAFELY, TOPICS, SimulatedProducer
from wheelmq.testing.simulation.world import World

GROUP: Final = "transactions"
COMMIT: Final = 8
ROLLBACK: Final = 12
BEAT_MS: Final = 5000
"""Time between two heartbeats of a producer."""


class ClusterProducer(SimulatedProducer):
    """A producer of messages, timers and cancels."""

    def __init__(self, world: World, oracle: ClusterOracle, number: int, view: Member) -> None:
        super().__init__(world, number)
        self._history = oracle
        self.view = view

    def move(self, view: Member) -> None:
        """Take another broker for the master."""
        if self.view.is_running:
            self.collect()
            self.cut()
        self.view = view
        self._world.harness = view.harness

    def take_answers(self) -> None:
        """Take the answers that have arrived."""
        self.collect()

    def _cancel_answered(self, asked: object, result: str, *, firm: bool) -> None:
        """Check the answer of the present master. One that was replaced may know less."""
        if self._world.harness.broker is self._history.broker:
            super()._cancel_answered(asked, result, firm=firm)  # type: ignore[arg-type]


@dataclass
class _Place:
    """The place of a half message, as the broker named it."""

    queue_offset: str
    position: int
    key: str


@dataclass
class _HalfAsked:
    ask: Ask
    half: Half


@dataclass
class HalfProducer:
    """A producer that sends half messages, ends them, and answers checks."""

    world: World
    oracle: ClusterOracle
    view: Member
    _connection: FakeConnection | None = None
    _asked: list[_HalfAsked] = field(default_factory=list)
    _open: list[tuple[Half, _Place]] = field(default_factory=list)
    """Stored half messages whose end the producer has not requested."""
    _beats_ms: int = 0

    def move(self, view: Member) -> None:
        if self.view.is_running:
            self.collect()
            self.cut()
        self.view = view

    def cut(self) -> None:
        """Lose the connection. The producer still knows its open transactions."""
        if self._connection is not None and self._connection.is_open and self.view.is_running:
            self.view.harness.lose(self._connection)

    def send(self) -> None:
        """Send a half message."""
        world, harness = self.world, self.view.harness
        topic, queue_id = TOPICS[0], world.randomness.randrange(QUEUES)
        sent = world.new_message(topic, queue_id, None)
        half = self.oracle.halves[sent.name] = Half(sent)
        pairs = {props.TRAN_MSG: "true", props.PRODUCER_GROUP: GROUP, props.UNIQ_KEY: sent.key}
        command = harness.send_command(topic, sent.name + PAD, queue_id=queue_id, properties=pairs, a=GROUP, f=4)
        self._asked.append(_HalfAsked(harness.submit(command, self._connect()), half))

    def end_one(self) -> None:
        """Decide about an open transaction, and request its end at the present view."""
        if not self._open:
            return
        half, place = self._open.pop(self.world.randomness.randrange(len(self._open)))
        self._decide(half)
        if self.world.chance(0.8):  # else the producer forgets it, and a check asks for it
            self._end(half, place, is_checked=False)

    def _decide(self, half: Half) -> None:
        if half.decision is TransactionEnd.OPEN:
            half.decision = TransactionEnd.COMMIT if self.world.chance(0.7) else TransactionEnd.ROLLBACK

    def _end(self, half: Half, place: _Place, *, is_checked: bool) -> None:
        ext = headers.texts(
            producerGroup=GROUP,
            tranStateTableOffset=place.queue_offset,
            commitLogOffset=place.position,
            commitOrRollback=COMMIT if half.decision is TransactionEnd.COMMIT else ROLLBACK,
            fromTransactionCheck=is_checked,
            msgId=place.key,
        )
        self.view.harness.submit(Command(code=RequestCode.END_TRANSACTION, ext=ext), self._connect(), oneway=True)
        self.world.counts["transactions ended"] += 1

    def beat(self) -> None:
        """Send a heartbeat if it is time, so that the broker can ask for the state of transactions."""
        now_ms = self.view.harness.clock.monotonic_ms()
        is_new = self._connection is None or not self._connection.is_open
        if is_new or now_ms >= self._beats_ms:
            self._beats_ms = now_ms + BEAT_MS
            body = msgspec.json.encode({"clientID": "transactions", "producerDataSet": [{"groupName": GROUP}]})
            self.view.harness.submit(Command(code=RequestCode.HEART_BEAT, body=body), self._connect())

    def collect(self) -> None:
        """Take the answers, and answer the checks."""
        self.take_answers()
        connection = self._connection
        if connection is None or not connection.is_open:
            return
        requests, connection.requests = connection.requests, []
        for check in requests:
            if check.code == RequestCode.CHECK_TRANSACTION_STATE:
                self._answer(check)

    def take_answers(self) -> None:
        """Take the answers to half messages that have arrived."""
        left = []
        for asked in self._asked:
            if asked.ask.answer is not None:
                self._stored(asked.half, asked.ask.answer)
            elif asked.ask.connection.is_open:
                left.append(asked)
        self._asked = left

    def _stored(self, half: Half, answer: Command) -> None:
        if answer.code != ResponseCode.SUCCESS and answer.code not in STORED_UNSAFELY:
            half.sent.answer = SendAnswer.REFUSED
            return
        if "msgId" not in answer.ext:
            return
        position = parse_offset_message_id(answer.ext["msgId"])[1]
        if answer.code == ResponseCode.SUCCESS:
            self.oracle.stored(half.sent, position, self.view.broker, durable=True)
            self.world.counts["acknowledged half messages"] += 1
        self._open.append((half, _Place(answer.ext["queueOffset"], position, half.sent.key)))

    def _answer(self, check: Command) -> None:
        """Answer a check, by the key of the half message."""
        key = check.ext["transactionId"]
        half = next(one for one in self.oracle.halves.values() if one.sent.key == key)
        self._decide(half)
        place = _Place(check.ext["tranStateTableOffset"], int(check.ext["commitLogOffset"]), key)
        self._end(half, place, is_checked=True)
        self.world.counts["checked transactions"] += 1

    def _connect(self) -> FakeConnection:
        if self._connection is None or not self._connection.is_open:
            self._connection = self.view.harness.connect(b"\x0a\0\3\1")
        return self._connection


@dataclass
class ClusterConsumer:
    """A consumer that pulls queues of any broker, and compares the records with the history."""

    world: World
    oracle: ClusterOracle
    observe: Callable[[], None]
    """Lets the oracle read the new records of the history."""
    last_answer: Command | None = None
    _next: dict[Queue, int] = field(default_factory=dict)

    def pull_any(self, view: Member) -> None:
        """Pull a random queue, from its next record or an earlier one."""
        r = self.world.randomness
        queue = r.choice(ALL_QUEUES)
        self._pull(view, queue, r.choice((0, self._next.get(queue, 0))))

    def drain(self, view: Member) -> None:
        """Pull every queue to its end, and check that it has all records of the history."""
        for queue in ALL_QUEUES:
            offset, end = 0, len(self.oracle.queue(*queue))
            while offset < end:
                count = self._pull(view, queue, offset)
                assert count, f"{view.name}: {queue} has no record at {offset} of {end}: {self.last_answer}"
                offset += count

    def _pull(self, view: Member, queue: Queue, offset: int) -> int:
        """Pull once, check the records, and return their number."""
        ask = view.harness.submit(view.harness.pull_command(*queue, offset))
        view.harness.tick()
        answer = self.last_answer = ask.answer
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return 0
        records = records_in(bytes(answer.body))
        self.observe()
        if self.oracle.is_sync or view.broker is self.oracle.broker:
            for record in records:
                name = record.message.body.partition(PAD)[0]
                self.oracle.seen(*queue, record.queue_offset, name)
        self._next[queue] = offset + len(records)
        self.world.counts["pulled"] += len(records)
        return len(records)
