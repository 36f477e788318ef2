"""A client that sends, cancels and repeats unanswered sends. It checks that answers are true."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from wheelmq.client.outgoing import encode_batch
from wheelmq.delay.levels.table import DEFAULT_LEVELS, parse_levels
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message_id import parse_offset_message_id
from wheelmq.formats.disk.parked import delete_key
from wheelmq.formats.wire import frame, headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import Ask
from wheelmq.testing.simulation.oracle import PAD, Sent
from wheelmq.testing.simulation.world import World

TOPICS: Final = ("A", "B", "C")
TOPIC_WEIGHTS: Final = (10, 5, 1)
"""The last topic is created late in a run, or never."""
QUEUES: Final = 4
LEVELS_MS: Final = parse_levels(DEFAULT_LEVELS)
DELAY_MS_MAX: Final = 24_000
BODY_BYTES: Final = (10, 10, 300, 1500, 4000)
WAITS_FOR_DISK: Final = 0.9
"""Share of the sends that are answered once they are safe, if the broker runs with SYNC_FLUSH or SYNC_MASTER."""
STORED_UNSAFELY: Final = frozenset(
    (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
)
"""Answers to a message that is stored, and that a stop or a failover may lose."""


@dataclass
class _Asked:
    """A request: its messages, or the key that it cancels."""

    ask: Ask
    sent: list[Sent]
    waits: bool = True
    cancels: str = ""
    waited: set[bytes] = field(default_factory=set)
    """Names of messages that were pending under that key at the cancel."""


class SimulatedProducer:
    """One client with at most one connection."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._address = bytes((10, 0, 1, number))
        self._connection: FakeConnection | None = None
        self._asked: list[_Asked] = []
        self._has_route: set[str] = set()
        self._unanswered: list[Sent] = []
        self._handles: list[tuple[str, str, str]] = []
        """(topic, key, handle) of timers that a recall may cancel."""

    @property
    def waits(self) -> int:
        return len(self._asked)

    # Requests ------------------------------------------------------------------------------------------------------

    def send(self) -> None:
        """Send a message, with or without one of the kinds of delay."""
        world, r = self._world, self._world.randomness
        (topic,), key = r.choices(TOPICS, TOPIC_WEIGHTS), None
        if world.oracle.sent and world.chance(0.05):  # keys may repeat
            other = r.choice(list(world.oracle.sent.values()))
            topic, key = other.topic, other.key
        self._send(topic, r.choice((0, 0, 1, -1)), key)

    def send_again(self) -> None:
        if self._unanswered:
            sent = self._unanswered.pop(self._world.randomness.randrange(len(self._unanswered)))
            self._send(sent.topic, sent.queue_id, sent.key)

    def send_at(self, due_ms: int) -> Sent:
        return self._send_delayed(due_ms, {props.TIMER_DELIVER_MS: str(due_ms)})

    def send_in_block(self, seconds: int) -> Sent:
        due_ms = self._world.harness.now_ms + seconds * 1000
        return self._send_delayed(due_ms, {props.DELAY_IN_SECONDS: str(seconds)})

    def _send_delayed(self, due_ms: int, properties: dict[str, str]) -> Sent:
        sent = self._world.new_message(TOPICS[0], 0, due_ms)
        self._submit(self._command(sent, properties), [sent])
        return sent

    def _send(self, topic: str, queue_id: int, key: str | None) -> None:
        if not self._finds(topic):
            return
        due_ms, properties = self._delay()
        sent = self._world.new_message(topic, queue_id, due_ms, key)
        sent.level = int(properties.get(props.DELAY, "0"))
        waits = self._world.chance(WAITS_FOR_DISK)
        if not waits:
            properties[props.WAIT] = "false"
        self._submit(self._command(sent, properties), [sent], waits=waits)

    def send_with_one_opaque(self) -> None:
        """Send two messages in two requests with the same opaque number, as a faulty client does."""
        if not self._finds(TOPICS[0]):
            return
        first, second = (self._world.new_message(TOPICS[0], 0, None) for _ in range(2))
        ask = self._submit(self._command(first, {}), [first, second])
        command = self._command(second, {})
        command.opaque = ask.connection.repeat_opaque(ask.opaque)
        self._world.harness.feed(frame.encode(command), ask.connection)

    def send_batch(self) -> None:
        topic = TOPICS[0]
        if not self._finds(topic):
            return
        world = self._world
        sent = [world.new_message(topic, 1, None) for _ in range(world.randomness.randint(1, 4))]
        body = encode_batch([(self._body(one), {props.UNIQ_KEY: one.key}) for one in sent])
        command = world.harness.send_command(topic, body, queue_id=1, m=True)
        command.code = RequestCode.SEND_BATCH_MESSAGE
        self._submit(command, sent)

    def cancel(self) -> None:
        """Cancel by the key of a random delayed message, whatever its state."""
        world = self._world
        timed = [sent for sent in world.oracle.sent.values() if sent.due_ms is not None]
        if not timed:
            return
        target = world.randomness.choice(timed)
        properties = {props.TIMER_DEL_UNIQKEY: delete_key(target.topic, target.key)}
        command = world.harness.send_command(target.topic, b"cancel", delay_ms=5000, properties=properties)
        self._submit(command, [], cancels=target.key)

    def recall(self) -> None:
        if not self._handles:
            return
        topic, key, handle = self._world.randomness.choice(self._handles)
        ext = headers.texts(topic=topic, recallHandle=handle, producerGroup="producers")
        self._submit(Command(code=RequestCode.RECALL_MESSAGE, ext=ext), [], cancels=key)

    def cut(self) -> None:
        """Break the connection. The broker may execute the open requests, but their answers are lost."""
        if self._connection is not None and self._connection.is_open:
            self._world.harness.lose(self._connection)

    def _finds(self, topic: str) -> bool:
        """Return whether the client has a route. Without a name server it uses the route that it has."""
        if topic not in self._has_route:
            route = self._world.names.route(topic)
            if route is None or route.queue_datas[0].write_queue_nums < QUEUES:
                return False
            self._has_route.add(topic)
        return True

    def _delay(self) -> tuple[int | None, dict[str, str]]:
        """Return a random due time, and the properties that carry it."""
        world, r = self._world, self._world.randomness
        now_ms = world.harness.now_ms
        delay_ms = r.choice(
            (r.randint(1, 100), r.randint(1, 3000), r.randint(1, 24) * 1000, r.randint(1, DELAY_MS_MAX))
        )
        if world.block_share and world.chance(world.block_share):
            seconds = delay_ms // 1000 + 1
            return now_ms + seconds * 1000, {props.DELAY_IN_SECONDS: str(seconds)}
        match r.choice(("none", "ms", "ms", "seconds", "at", "level")):
            case "ms":
                return now_ms + delay_ms, {props.TIMER_DELAY_MS: str(delay_ms)}
            case "seconds":
                seconds = delay_ms // 1000 + 1
                return now_ms + seconds * 1000, {props.TIMER_DELAY_SEC: str(seconds)}
            case "at":
                return now_ms + delay_ms, {props.TIMER_DELIVER_MS: str(now_ms + delay_ms)}
            case "level":
                level = r.randint(1, 3)
                return now_ms + LEVELS_MS[level - 1], {props.DELAY: str(level)}
        return None, {}

    def _command(self, sent: Sent, properties: dict[str, str]) -> Command:
        properties = {props.UNIQ_KEY: sent.key, **properties}
        return self._world.harness.send_command(
            sent.topic, self._body(sent), queue_id=sent.queue_id, properties=properties
        )

    def _body(self, sent: Sent) -> bytes:
        return sent.name.ljust(self._world.randomness.choice(BODY_BYTES), PAD)

    def _submit(self, command: Command, sent: list[Sent], *, waits: bool = True, cancels: str = "") -> Ask:
        if self._connection is None or not self._connection.is_open:
            self._connection = self._world.harness.connect(self._address)
        oracle = self._world.oracle
        waited = {name for _, name in oracle.pending if cancels and oracle.key_of(name) == cancels}
        ask = self._world.harness.submit(command, self._connection)
        self._asked.append(_Asked(ask, sent, waits, cancels, waited))
        return ask

    # Answers -------------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Process the answers that have arrived. Requests on closed connections count as unanswered."""
        left = []
        for asked in self._asked:
            connection, opaque = asked.ask
            if asked.ask.answer is not None and not connection.waits_for(opaque):
                self._answered(asked, asked.ask.answer)
            elif connection.is_open:
                left.append(asked)
            else:
                self._unanswered += asked.sent
        self._asked = left

    def _answered(self, asked: _Asked, answer: Command) -> None:
        world = self._world
        world.trace.note(
            f"  {answer.code} {answer.remark or ''} to {asked.cancels or [one.name for one in asked.sent]}"
        )
        firm = asked.waits and world.oracle.is_firm(world.harness.broker)
        if answer.code in STORED_UNSAFELY:
            return
        if answer.code != ResponseCode.SUCCESS:
            if len(asked.sent) == 1:
                world.oracle.refused(asked.sent[0])
            return
        if asked.cancels:
            self._cancel_answered(asked, answer.ext["cancelResult"], firm=firm)
            return
        ids = answer.ext["msgId"].split(",")
        # two requests with one opaque have only the last answer
        if asked.sent[0].topic == TOPICS[0] and len(ids) < len(asked.sent):
            asked.sent = [one for one in asked.sent if one.key == answer.ext["transactionId"]]
        for one, text in zip(asked.sent, ids, strict=True):
            world.oracle.stored(one, parse_offset_message_id(text)[1], world.harness.broker, durable=firm)
            world.counts["acknowledged"] += 1
            if handle := answer.ext.get("recallHandle"):
                self._handles.append((one.topic, one.key, handle))

    def _cancel_answered(self, asked: _Asked, result: str, *, firm: bool) -> None:
        oracle = self._world.oracle
        self._world.counts[result] += 1
        if result == "cancelled":
            oracle.cancelled(asked.cancels, self._world.harness.broker, durable=firm)
        else:
            oracle.not_cancelled(asked.waited)
