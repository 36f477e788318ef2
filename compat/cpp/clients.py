"""The clients of the C++ suite: producers, consumers that keep their messages, and checks of arrivals."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rocketmq import client as rocketmq
from rocketmq.exceptions import ProducerSendSyncFailed

NAMESRV = os.environ["COMPAT_NAMESRV"]
LATENESS_MAX_MS = int(os.environ["COMPAT_LATENESS_MAX_MS"])
PATIENCE_S = 60.0
"""A consumer of this client updates its routes every 30 s, and its queues every 10 s."""
POLL_S = 0.005
QUEUES = 4
"""Queues of a topic that a send creates."""

RUN = f"{int(time.time() * 1000):x}"
numbers = itertools.count(1)
opened: list[Any] = []
"""Clients of finished cases. They stay open until the process ends, because their shutdown may take seconds."""


def fresh(what: str) -> str:
    """Return a name that no earlier run has used."""
    return f"compat_cpp_{what}_{RUN}_{next(numbers)}"


def ids(count: int) -> list[str]:
    """Return ids that sort in the order of their numbers."""
    return [f"id-{number:04}" for number in range(count)]


def now_ms() -> float:
    return time.time() * 1000


def until(what: Callable[[], object], condition: Callable[[], bool]) -> None:
    """Wait until the condition holds. Fails after PATIENCE_S, with the text that `what` returns."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: {what()}"
        time.sleep(POLL_S)


@dataclass(frozen=True)
class Arrival:
    """A copy of a received message. The client's own object is valid only during the call."""

    id: str
    tags: str
    body: bytes
    queue: int
    reconsumed: int
    fence: str
    at_ms: float
    topic: str
    properties: dict[str, str]


PROPERTIES = ("colour", "TIMER_DELAY_MS", "TIMER_OUT_MS", "DELAY", "CLUSTER", "RETRY_TOPIC")


def arrival_of(message: Any) -> Arrival:
    def text(value: bytes | None) -> str:
        return (value or b"").decode()

    return Arrival(
        id=text(message.keys),
        tags=text(message.tags),
        body=message.body,
        queue=message.queue_id,
        reconsumed=message.reconsume_times,
        fence=text(message.get_property("fence")),
        at_ms=now_ms(),
        topic=message.topic,
        properties={name: text(message.get_property(name)) for name in PROPERTIES},
    )


def new_producer() -> Any:
    producer = rocketmq.Producer(fresh("producer"))
    producer.set_namesrv_addr(NAMESRV)
    producer.start()
    opened.append(producer)
    return producer


def message(topic: str, id: str, tag: str = "tag", **properties: object) -> Any:
    """Return a message with its id as key and body."""
    made = rocketmq.Message(topic)
    made.set_keys(id)
    made.set_tags(tag)
    made.set_body(id)
    for name, value in properties.items():
        made.set_property(name, str(value))
    return made


def new_topic() -> str:
    """Create a topic with four queues by an unexpected first message, and return its name."""
    topic, producer = fresh("topic"), new_producer()

    def made() -> bool:
        """Send the first message. The client finds no route while another of its threads searches one."""
        try:
            producer.send_sync(message(topic, "first", "first"))
        except ProducerSendSyncFailed:
            return False
        return True

    until(lambda: f"{topic} to be made", made)
    return topic


@dataclass
class Inbox:
    """A push consumer that keeps its messages with their times. It has one thread, so that fences work."""

    topic: str
    group: str = ""
    expression: str = "*"
    orderly: bool = False
    broadcast: bool = False
    takes: Callable[[Arrival], bool] = lambda arrival: True
    arrivals: list[Arrival] = field(default_factory=list)

    def open(self) -> Inbox:
        model = rocketmq.MessageModel
        consumer = rocketmq.PushConsumer(
            self.group or fresh("group"),
            orderly=self.orderly,
            message_model=model.BROADCASTING if self.broadcast else model.CLUSTERING,
        )
        consumer.set_namesrv_addr(NAMESRV)
        consumer.set_instance_name(fresh("instance"))
        consumer.set_thread_count(1)
        consumer.subscribe(self.topic, self._note, self.expression)
        consumer.start()
        opened.append(consumer)
        return self

    def _note(self, message: Any) -> None:
        arrival = arrival_of(message)
        self.arrivals.append(arrival)
        if not arrival.fence and arrival.tags != "first" and not self.takes(arrival):
            raise NotNowError

    @property
    def came(self) -> list[Arrival]:
        """The received messages, in order, without fences and the message that created the topic."""
        return [arrival for arrival in self.arrivals if not arrival.fence and arrival.tags != "first"]

    @property
    def ids(self) -> list[str]:
        return [arrival.id for arrival in self.came]

    def await_count(self, count: int) -> list[Arrival]:
        until(lambda: f"{count} messages, of which came {self.ids}", lambda: len(self.came) >= count)
        return self.came

    def await_only(self, id: str) -> Arrival:
        until(lambda: f"{id} among {self.ids}", lambda: id in self.ids)
        assert self.ids.count(id) == 1, self.ids
        return self.came[self.ids.index(id)]


class NotNowError(Exception):
    """Makes the client send the message back."""


def fence(*inboxes: Inbox, tag: str = "tag") -> None:
    """Send a last message to each queue, and wait until the inboxes have received all of them."""
    mark = fresh("fence")
    producer = new_producer()
    for queue in range(QUEUES):
        producer.send_orderly(message(inboxes[0].topic, mark, tag, fence=mark), queue)

    def seen(inbox: Inbox) -> int:
        return [arrival.fence for arrival in inbox.arrivals].count(mark)

    until(lambda: f"fences: {[seen(inbox) for inbox in inboxes]}", lambda: all(seen(one) == QUEUES for one in inboxes))


@dataclass
class Check:
    """The measured figures of a running case."""

    measures: dict[str, float] = field(default_factory=dict)

    def late(self, arrival: Arrival, earliest_ms: float, latest_ms: float) -> None:
        """Fail if a message arrived early or too late, and record its lateness."""
        late_ms = arrival.at_ms - earliest_ms
        self.measures["lateness_ms"] = max(self.measures.get("lateness_ms", 0.0), late_ms)
        assert late_ms >= 0, f"{-late_ms:.0f} ms early"
        assert arrival.at_ms - latest_ms <= LATENESS_MAX_MS, f"{arrival.at_ms - latest_ms:.0f} ms late"
