"""What can be chosen of a consumer, and what its callback says of a message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from pathlib import Path

import msgspec

from wheelmq.client.access import AccessKey
from wheelmq.client.allocation import Allocation, allocate
from wheelmq.client.message import ReceivedMessage
from wheelmq.client.session import KEEP_ALIVE_MS, at_least_one


class Consumed(Enum):
    """What a callback says of its message."""

    DONE = "done"
    LATER = "later"
    """It could not be handled now. Concurrently: the broker delivers it again later, up to 16 times, longer apart each
    time. Orderly: it is tried again after a pause, before any other message of its queue."""


class Later(msgspec.Struct, frozen=True):
    """As LATER, after a delay of the callback's choosing, where messages are consumed concurrently."""

    delay_level: int = 0
    """1 to 18: after that level's delay; 0: the broker picks; -1: no more, to the group's dead letters at once."""


Outcome = Consumed | Later | None
Callback = Callable[[ReceivedMessage], Outcome | Awaitable[Outcome]]
"""A coroutine function, or a plain one, which runs in a thread. None stands for DONE; an exception, sys.exit, and
whatever else is returned stand for LATER."""


class StartFrom(Enum):
    """Where a group begins in a queue that it has never consumed from."""

    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    LAST = "CONSUME_FROM_LAST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    """With what was stored from `start_ms` on."""


class Model(Enum):
    """Who of a group gets a message."""

    CLUSTERING = "CLUSTERING"
    """One member."""
    BROADCASTING = "BROADCASTING"
    """Each member; how far it is stands in a file of its own, and what fails is not tried again."""


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What can be chosen of every consumer."""

    model: Model = Model.CLUSTERING
    start_from: StartFrom = StartFrom.FIRST
    start_ms: int = 0
    """Milliseconds since 1970, for StartFrom.TIMESTAMP."""
    pull_count: int = 32
    hold_ms: int = 15_000
    """How long the broker may hold a pull that finds nothing."""
    in_hand_max: int = 1000
    """Messages of one queue that are pulled and not consumed; past it no more are pulled."""
    in_hand_bytes_max: int = 100 << 20
    """Their bodies, as far as they are pulled: one answer more may come."""
    span_max: int = 2000
    """Queue offsets from the first message in hand to the next pull; past it no more are pulled. What is done behind a
    message that is stuck comes again when the consumer ends before that."""
    timeout_ms: int = 3000
    keep_alive_ms: int = KEEP_ALIVE_MS
    """How often routes are refreshed, and heartbeats sent."""
    access_key: AccessKey | None = None
    """Signs the requests, for brokers with access control."""
    allocate: Allocation = allocate
    """How a group's members share out queues; it must be the same for all."""
    instance: str = "DEFAULT"
    """Of consumers that broadcast: two of a group on one machine need different ones."""
    offsets_folder: Path | None = None
    """Where those keep how far they are; `.rocketmq_offsets` in the home folder, as Apache's client has it."""

    def __post_init__(self) -> None:
        at_least_one(self, "pull_count", "in_hand_max", "in_hand_bytes_max", "span_max", "timeout_ms", "keep_alive_ms")


class ConsumerSettings(GroupSettings, frozen=True, kw_only=True):
    """What can be chosen of a push consumer."""

    concurrency: int = 20
    """Callbacks at once."""
    orderly: bool = False
    """Whether the messages of a queue come one by one, in order, to one member of the group at a time."""
    suspend_ms: int = 1000
    """Orderly: until a message that failed is tried again."""
    reconsume_times_max: int | None = None
    """After so many more tries a message goes to the group's dead letters; None: 16, and orderly never."""
    consume_timeout_ms: int = 15 * 60_000
    """A callback that takes longer has failed; a coroutine is cancelled, a thread is left to itself, and counts for
    `concurrency` until it returns. Orderly, a thread is waited for: nothing of its queue may run beside it."""
    stop_grace_ms: int = 10_000
    """How long `stop` waits for callbacks that run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "concurrency", "consume_timeout_ms")


class PullSettings(GroupSettings, frozen=True, kw_only=True):
    """What can be chosen of a pull consumer."""

    auto_commit: bool = True
    """Whether what one poll gave counts as consumed when the next one begins, or the consumer stops in order."""
