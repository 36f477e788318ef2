"""The settings of consumers, and the results of their callbacks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from pathlib import Path

import msgspec

from wheelmq.client.allocation import Allocation, allocate
from wheelmq.client.message import ReceivedMessage
from wheelmq.client.session import KEEP_ALIVE_MS, at_least_one
from wheelmq.formats.wire.signature import AccessKey


class Consumed(Enum):
    DONE = "done"
    LATER = "later"
    """The message could not be handled now.

    Concurrent consumers: the broker delivers it again, up to 16 times, at growing intervals. Orderly consumers: the
    callback is retried after a pause, before any other message of the queue.
    """


class Later(msgspec.Struct, frozen=True):
    """LATER with a delay of the callback's choice. The delay has an effect on concurrent consumers only."""

    delay_level: int = 0
    """1 to 18: the delay of that level. 0: the broker chooses. -1: no retry; the message goes to the group's dead
    letters at once."""


Outcome = Consumed | Later | None
Callback = Callable[[ReceivedMessage], Outcome | Awaitable[Outcome]]
"""A coroutine function, or a plain function, which runs in a thread.

None means DONE. An exception, sys.exit and an unknown result mean LATER.
"""


class StartFrom(Enum):
    """The start position of a group in a queue that it has never consumed from."""

    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    LAST = "CONSUME_FROM_LAST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    """The first message stored at `start_ms` or later."""


class Model(Enum):
    """The members of a group that receive a message."""

    CLUSTERING = "CLUSTERING"
    """One member receives each message."""
    BROADCASTING = "BROADCASTING"
    """Every member receives each message. A member keeps its offsets in a local file.
    A failed message is not retried."""


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that all consumers have."""

    model: Model = Model.CLUSTERING
    start_from: StartFrom = StartFrom.FIRST
    start_ms: int = 0
    """Milliseconds since 1970, for StartFrom.TIMESTAMP."""
    pull_count: int = 32
    hold_ms: int = 15_000
    """How long the broker may hold a pull that finds no message."""
    in_hand_max: int = 1000
    """Limit of pulled but not yet consumed messages of one queue. Pulling pauses at the limit."""
    in_hand_bytes_max: int = 100 << 20
    """Limit of the bytes of their bodies. One more pull answer may exceed it."""
    span_max: int = 2000
    """Limit of queue offsets between the first unconsumed message and the next pull. Pulling pauses beyond the limit.

    Messages consumed after a stuck message are delivered again if the consumer ends first.
    """
    timeout_ms: int = 3000
    keep_alive_ms: int = KEEP_ALIVE_MS
    """Interval at which routes are refreshed and heartbeats sent."""
    access_key: AccessKey | None = None
    """Signs the requests, for brokers with access control."""
    allocate: Allocation = allocate
    """The strategy that assigns queues to the members of a group. All members must use the same one."""
    instance: str = "DEFAULT"
    """Instance name of a broadcasting consumer. Two consumers of one group on one machine need different names."""
    offsets_folder: Path | None = None
    """Folder of the offset files of broadcasting consumers. None:
    `.rocketmq_offsets` in the home folder, as in Apache's client."""

    def __post_init__(self) -> None:
        at_least_one(self, "pull_count", "in_hand_max", "in_hand_bytes_max", "span_max", "timeout_ms", "keep_alive_ms")


class ConsumerSettings(GroupSettings, frozen=True, kw_only=True):
    """The settings of a push consumer."""

    concurrency: int = 20
    orderly: bool = False
    """Whether the messages of a queue are consumed one by one, in order, by one member of the group at a time."""
    suspend_ms: int = 1000
    """Orderly consumers: pause before a failed message is retried."""
    reconsume_times_max: int | None = None
    """Number of retries after which a message goes to the group's dead letters.
    None: 16; orderly consumers retry without a limit."""
    consume_timeout_ms: int = 15 * 60_000
    """A callback that runs longer has failed. A coroutine is cancelled.

    A thread keeps running and counts for `concurrency` until it returns. Orderly consumers have no timeout for threads,
    because no other message of the queue may be consumed at the same time.
    """
    stop_grace_ms: int = 10_000
    """How long `stop` waits for running callbacks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "concurrency", "consume_timeout_ms")


class PullSettings(GroupSettings, frozen=True, kw_only=True):
    """The settings of a pull consumer."""

    auto_commit: bool = True
    """Whether the messages of a poll count as consumed when the next poll begins or the consumer stops without an
    exception."""
