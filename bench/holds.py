"""Ten thousand held pulls on a hundred connections: the cost of one message, and the time until its pulls have it.

First ten pulls wait at each of a thousand queues. Then all wait at one queue, each for a tag of its own. Messages are
sent one at a time. The pulls that a message wakes are repeated before the next message. For comparison the same sends
run without held pulls.
"""

from __future__ import annotations

import itertools
import selectors
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from bench.report import Figures, Metric, Report, measure, parse, parser
from bench.targets import Target
from wheelmq.formats.wire import frame, headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import PULL_SUBSCRIPTION, PULL_SUSPEND, PullHeader, SendHeader

HOLDS: Final = 10_000
CONNECTIONS: Final = 100
QUEUES: Final = 1_000
HOLD_MS: Final = 600_000
ANSWER_S: Final = 20.0
BODY: Final = b"x" * 256

METRICS = [
    Metric("queue_p50", "message to its 10 pulls of 10,000, p50 ms", ratio_at_most=1),
    Metric("queue_p99", "the same, p99 ms"),
    Metric("queue_us", "broker's processor for it, us", ratio_at_most=1),
    Metric("tag_p50", "message to its 1 pull of 10,000 by tag, p50 ms", ratio_at_most=1),
    Metric("tag_p99", "the same, p99 ms"),
    Metric("tag_us", "broker's processor for it, us", ratio_at_most=1),
    Metric("none_us", "broker's processor for a send that nobody waits for, us"),
]


@dataclass(frozen=True)
class Wait:
    """A held pull, and its connection."""

    number: int
    topic: str
    queue_id: int
    tag: str
    peer: int


class Peer:
    """A connection. It returns answers in the order of their arrival."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._opaques = itertools.count(1)

    def send(self, *commands: Command) -> None:
        """Send requests, and number them in order."""
        for command in commands:
            command.opaque = next(self._opaques)
        self._socket.sendall(b"".join(map(frame.encode, commands)))

    def answer(self) -> Command:
        """Return the next answer. Raises TimeoutError."""
        while (found := self.read_answer()) is None:
            self.receive()
        return found

    def read_answer(self) -> Command | None:
        """Return the next answer, if it has been received."""
        end = frame.frame_end(self._buffer, 0, len(self._buffer))
        if end is None:
            return None
        command = frame.decode(bytes(self._buffer[:end]), 0, end)
        del self._buffer[:end]
        return command

    def receive(self) -> None:
        """Receive more. Raises TimeoutError."""
        chunk = self._socket.recv(1 << 18)
        assert chunk, "the broker closed the connection"
        self._buffer += chunk

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


class Crowd:
    """The held pulls, and the offset of each in its queue."""

    def __init__(
        self, address: str, waits: Sequence[Wait], *, connections: int = CONNECTIONS, hold_ms: int = HOLD_MS
    ) -> None:
        self.hold_ms = hold_ms
        """How long the next pulls may be held."""
        self._peers = [Peer(address) for _ in range(connections)]
        self._sender = Peer(address)
        self._offsets: defaultdict[Wait, int] = defaultdict(int)
        self._held: dict[tuple[int, int], Wait] = {}
        """Pulls without an answer, by connection and opaque."""
        for number, peer in enumerate(self._peers):
            self._pull([wait for wait in waits if wait.peer == number])
            peer.send(_last())
            while peer.answer().code != ResponseCode.SUCCESS:
                pass

    def close(self) -> None:
        for peer in (*self._peers, self._sender):
            peer.close()

    def send(self, topic: str, queue_id: int, tag: str, woken: Sequence[Wait]) -> float:
        """Send a message, receive the answers of its pulls, and repeat those pulls.

        Returns the seconds until the last answer.
        """
        began_s = time.perf_counter()
        self._sender.send(_send(topic, queue_id, tag))
        for number in {wait.peer for wait in woken}:
            self._take(number, {wait for wait in woken if wait.peer == number})
        took_s = time.perf_counter() - began_s
        assert self._sender.answer().code == ResponseCode.SUCCESS
        self._pull(woken)
        return took_s

    def idle(self, seconds: float) -> tuple[int, int]:
        """Repeat the pulls that end, for `seconds`. Returns the number of ends without messages and with messages."""
        empty = full = 0
        end_s = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            for number, peer in enumerate(self._peers):
                selector.register(peer, selectors.EVENT_READ, number)
            ready = list(range(len(self._peers)))  # may have unread answers
            while True:
                for number in ready:
                    while (answer := self._peers[number].read_answer()) is not None:
                        wait = self._held.pop((number, answer.opaque))
                        self._offsets[wait] = int(answer.ext["nextBeginOffset"])
                        full += answer.code == ResponseCode.SUCCESS
                        empty += answer.code != ResponseCode.SUCCESS
                        self._pull([wait])
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    return empty, full
                ready = [key.data for key, _ in selector.select(left_s)]
                for number in ready:
                    self._peers[number].receive()

    def _take(self, number: int, waits: set[Wait]) -> None:
        """Receive the answers to pulls on one connection, and repeat other pulls that ended without messages.

        Every 5 s, Apache ends the pulls of queues with new messages, whatever their filter.
        """
        while waits:
            answer = self._peers[number].answer()
            wait = self._held.pop((number, answer.opaque))
            self._offsets[wait] = int(answer.ext["nextBeginOffset"])
            if answer.code == ResponseCode.SUCCESS:
                waits.remove(wait)
            else:
                self._pull([wait])

    def _pull(self, waits: Sequence[Wait]) -> None:
        by_peer: defaultdict[int, list[tuple[Wait, Command]]] = defaultdict(list)
        for wait in waits:
            by_peer[wait.peer].append((wait, _pull(wait, self._offsets[wait], self.hold_ms)))
        for number, asked in by_peer.items():
            self._peers[number].send(*(command for _, command in asked))
            self._held.update({(number, command.opaque): wait for wait, command in asked})


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("holds", __doc__)
    options = parse(made, argv)
    count = 200 if options.short else 1000
    report = Report(f"{HOLDS:,} pulls held, {count} messages each", METRICS)
    measure(report, options, lambda target: _figures(target, count))
    return report.finish(options.json)


def _figures(target: Target, count: int) -> Figures:
    make_topics(target, BenchQueues=QUEUES, BenchTags=1, BenchNone=1)
    by_queue = [Wait(i, "BenchQueues", i % QUEUES, "", i % CONNECTIONS) for i in range(HOLDS)]
    by_tag = [Wait(i, "BenchTags", 0, f"tag{i}", i % CONNECTIONS) for i in range(HOLDS)]
    queue = _waking(target, by_queue, lambda i: by_queue[i * 7 % QUEUES :: QUEUES], count)
    tag = _waking(target, by_tag, lambda i: [by_tag[i * 7 % HOLDS]], count)
    none = _waking(target, [], lambda i: [], count)
    return {
        **{f"queue_{name}": value for name, value in queue.items()},
        **{f"tag_{name}": value for name, value in tag.items()},
        "none_us": none["us"],
    }


def make_topics(target: Target, **queues: int) -> None:
    """Create topics with this number of queues each."""
    for topic, count in queues.items():
        target.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC, topic=topic, defaultTopic="TBW102", readQueueNums=count,
            writeQueueNums=count, perm=6, topicFilterType="SINGLE_TAG", topicSysFlag=0, order="false",
        )  # fmt: skip


def _waking(target: Target, waits: Sequence[Wait], woken: Callable[[int], Sequence[Wait]], count: int) -> Figures:
    crowd = Crowd(target.broker, waits)
    try:
        for i in range(count):  # until the JVM has compiled the measured code, and all pulls are held
            _send_to(crowd, woken(i))
        processor = target.processor()
        took_s = [_send_to(crowd, woken(i)) for i in range(count)]
        processor.look()
        used_s = processor.seconds()["broker"]
    finally:
        crowd.close()
    took_ms = 1000 * np.array(took_s)
    p50, p99 = np.percentile(took_ms, (50, 99)).tolist()
    return {"p50": p50, "p99": p99, "us": 1e6 * used_s / count}


def _send_to(crowd: Crowd, woken: Sequence[Wait]) -> float:
    first = woken[0] if woken else Wait(0, "BenchNone", 0, "", 0)
    return crowd.send(first.topic, first.queue_id, first.tag, woken)


def _pull(wait: Wait, offset: int, hold_ms: int) -> Command:
    header = PullHeader(
        consumer_group="bench",
        topic=wait.topic,
        queue_id=wait.queue_id,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=PULL_SUSPEND | PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=hold_ms,
        subscription=wait.tag or "*",
        expression_type="TAG",
    )
    return Command(code=RequestCode.PULL_MESSAGE, ext=headers.write(header))


def _last() -> Command:
    """Return a request whose answer proves that the broker has processed the requests before it."""
    return Command(code=RequestCode.GET_MAX_OFFSET, ext=headers.texts(topic="BenchNone", queueId=0))


def _send(topic: str, queue_id: int, tag: str) -> Command:
    header = SendHeader(
        producer_group="bench",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties=f"TAGS\x01{tag}\x02" if tag else "",
    )
    return Command(code=RequestCode.SEND_MESSAGE_V2, ext=headers.write_send_v2(header), body=BODY)


if __name__ == "__main__":
    sys.exit(main())
