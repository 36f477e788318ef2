"""The pulls of a range of a queue.

Pulls without a filter are pipelined: one pull at a time would wait for the network most of the time. A broker of Apache
returns at most 32 messages per pull by default. For WheelMQ, the pull asks that bytes alone limit the answer.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from pyspark_rocketmq.cluster import Cluster, TopicGone, access_remedy, rejected
from pyspark_rocketmq.errors import BrokerError, DataLossError, SilentBroker
from pyspark_rocketmq.offsets import Queue
from pyspark_rocketmq.options import DEFAULT_GROUP, SourceOptions
from pyspark_rocketmq.ranges import OffsetRange
from pyspark_rocketmq.retries import BUSY, RETRY_DELAYS_S
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.bodies import Subscription
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError

log = logging.getLogger(__name__)

PIPELINED_PULLS: Final = 16
PIPELINED_BYTES: Final = 2 << 20
"""Bytes of answers on their way, at most; but there are always two pulls."""
PULLED_MESSAGES: Final = 4096
"""Messages that a pull requests at most. The broker returns fewer."""
FULL_ANSWERS: Final = 16
"""Complete answers after which pulls request more messages again."""
HIDDEN_DELAYS_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 5.0, 5.0, 5.0, 5.0)
"""Waits for messages that the broker hides after a start, until its replicas have them."""
_REMOVING: Final = "MESSAGE_WAS_REMOVING"
_RESET: Final = "OFFSET_RESET"


class PulledRecords(NamedTuple):
    """The records in the answer to a pull, and their range of queue offsets: from `first` to `end`, without `end`."""

    first: int
    body: bytes | memoryview
    end: int


def pull_request(group: str, queue: Queue, first: int, count: int, subscription: Subscription) -> Command:
    """Return the request for at most `count` messages from offset `first` on. It does not wait for new messages."""
    header = headers.PullHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.number,
        queue_offset=first,
        max_msg_nums=count,
        sys_flag=headers.PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription=subscription.sub_string,
        sub_version=subscription.sub_version,
        expression_type=subscription.expression_type,
        wmq_bytes_only=True,
    )
    return Command(code=RequestCode.PULL_MESSAGE, ext=headers.write(header))


def pull_one(cluster: Cluster, options: SourceOptions, queue: Queue, offset: int) -> Command:
    """Return the answer to a pull of one message, without a filter. Raises SilentBroker."""
    everything = Subscription.of_tags(queue.topic, "*")
    while True:
        group = _group(cluster, options, queue.broker)
        answer = cluster.call(queue.broker, pull_request(group, queue, offset, 1, everything))
        if not _has_reset(answer) and not _changes_group(cluster, options, queue.broker, answer):
            return answer


def _group(cluster: Cluster, options: SourceOptions, broker: str) -> str:
    """Return the group of pulls from a broker: that of option group, if the broker has rejected the other."""
    return options.group if (broker, DEFAULT_GROUP) in cluster.rejected_groups else DEFAULT_GROUP


def _changes_group(cluster: Cluster, options: SourceOptions, broker: str, answer: Command) -> bool:
    """Return whether `answer` rejects the group of pulls, so that the next pulls have that of option group."""
    key = (broker, DEFAULT_GROUP)
    if key in cluster.rejected_groups or options.group == DEFAULT_GROUP or not _rejects_group(answer):
        return False
    cluster.rejected_groups.add(key)
    log.warning(
        "broker %s rejects group %s (%s). Its messages are pulled with group %s, whose consumers may not get a reset "
        "of their offsets. Create group %s, and give the user its right Sub.",
        broker,
        DEFAULT_GROUP,
        answer.remark,
        options.group,
        DEFAULT_GROUP,
    )
    return True


def _has_reset(answer: Command) -> bool:
    """Return whether the answer is an offset to which the group was reset. The next pull has another answer."""
    return answer.code == ResponseCode.PULL_OFFSET_MOVED and answer.remark == _RESET


def _rejects_group(answer: Command) -> bool:
    return answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST or bool(access_remedy(answer))


def is_within(cluster: Cluster, options: SourceOptions, queue: Queue, offset: int) -> bool:
    """Return whether `offset` is at most the end of a queue, with its hidden messages. Raises BrokerError.

    A broker answers PULL_NOT_FOUND up to there, and PULL_OFFSET_MOVED after that.
    """
    answer = pull_one(cluster, options, queue, offset)
    if answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
        return True
    if answer.code == ResponseCode.PULL_OFFSET_MOVED:
        return False
    raise rejected(answer, f"broker {queue.broker}")


class _NotShown(Exception):
    """The broker does not show the next message."""


class _Repeat(Exception):
    """An answer without messages. The next pull from the same offset can return them."""


class Pulls:
    """The pulls of a range, in the order of their offsets.

    They have a group without consumers. A broker answers the next pull of a group with its new offset if a tool has
    reset it. A consumer of option group would miss a reset that a pull of the connector has got.
    """

    def __init__(self, cluster: Cluster, options: SourceOptions, one: OffsetRange) -> None:
        self._cluster = cluster
        self._options = options
        self.range = one
        self.subscription = options.filter.subscription(one.queue.topic)
        self._window = PULLED_MESSAGES
        """Messages of the next pull. It follows from the answers, so that a pull usually has one answer."""
        self._depth = 1
        """Pulls at a time: one, until the first answer has shown how many messages the broker returns."""
        self._most = 0
        """The most messages of an answer."""
        self._full = 0
        """Complete answers since the last change of the window."""
        self._is_compacted: bool | None = None
        """Whether offsets without a message are usual in the topic; None until it matters."""
        self._failures = 0
        self._hidden = 0
        """Answers since the last message in which the broker does not show the next one."""

    def __iter__(self) -> Iterator[PulledRecords]:
        """Yield the answers. Raises BrokerError, DataLossError."""
        at = self.range.first
        while at < self.range.end:
            try:
                for pulled in self._pipelined(at):
                    self._failures = self._hidden = 0
                    at = pulled.end
                    yield pulled
            except _Repeat:
                continue
            except _NotShown:
                if not is_within(self._cluster, self._options, self.range.queue, self.range.end):
                    self._lose(at, self.range.end)
                    return
                self._wait_for_hidden(at)
            except (CallError, SilentBroker) as error:
                self._wait_for_broker(error)

    def _wait_for_broker(self, error: Exception) -> None:
        """Wait before the next attempt, and learn the broker's address again. Raises SilentBroker after the last one.

        A broker that fails over has another address, and one that restarts may have one.
        """
        queue = self.range.queue
        if self._failures == len(RETRY_DELAYS_S):
            raise SilentBroker(f"broker {queue.broker} cannot be read: {error}") from None
        log.info("broker %s cannot be read, the task repeats its pull: %s", queue.broker, error)
        threading.Event().wait(RETRY_DELAYS_S[self._failures])
        self._failures += 1
        with contextlib.suppress(BrokerError, TopicGone):
            self._cluster.relocate(queue.topic)

    def _pipelined(self, first: int) -> Iterator[PulledRecords]:
        """Yield the answers from offset `first` on. Raises CallError for a lost connection."""
        link = self._cluster.link(self.range.queue.broker)
        pending: deque[tuple[int, int, int]] = deque()
        """Request, first offset and end of each pull without an answer."""
        ahead = first
        try:
            while pending or ahead < self.range.end:
                while len(pending) < self._depth and ahead < self.range.end:
                    end = min(ahead + self._window, self.range.end) if self.is_open else self.range.end
                    pending.append((link.begin(self._request(ahead, end)), ahead, end))
                    ahead = end
                number, at, end = pending.popleft()
                pulled = self._pulled(link.finish(number), at, end)
                self._learn(pulled, end - at)
                yield pulled
                if not pending:
                    ahead = pulled.end
                while pending and pulled.end < end:
                    at = pulled.end
                    pulled = self._pulled(link.call(self._request(at, end)), at, end)
                    yield pulled
        finally:
            if pending:
                link.close()  # answers to the pending pulls may still come

    def _learn(self, pulled: PulledRecords, requested: int) -> None:
        """Choose the size and the number of the next pulls, after an answer to a pull of `requested` messages."""
        if not self.is_open:
            return
        count = pulled.end - pulled.first
        self._depth = max(2, min(PIPELINED_PULLS, PIPELINED_BYTES // (len(pulled.body) or 1)))
        self._most = max(self._most, count)
        if count < requested:
            self._window, self._full = max(1, count), 0
        elif (full := self._full + 1) < FULL_ANSWERS:
            self._full = full
        else:
            self._window, self._full = min(2 * self._window, self._most), 0

    @property
    def is_open(self) -> bool:
        """Whether every message matches. Then the offset after a pull is known before its answer."""
        return self._options.filter.is_open

    def _request(self, first: int, end: int) -> Command:
        count = min(end - first, PULLED_MESSAGES)
        group = _group(self._cluster, self._options, self.range.queue.broker)
        return pull_request(group, self.range.queue, first, count, self.subscription)

    def _pulled(self, answer: Command, first: int, end: int) -> PulledRecords:
        """Return the messages in the answer to a pull of [first, end). Raises BrokerError, DataLossError."""
        match answer.code:
            case ResponseCode.SUCCESS:
                after = int(answer.ext["nextBeginOffset"])
                if after <= first:
                    raise BrokerError(f"the broker returns offset {after} after {first}: queue {self.range.queue}")
                return PulledRecords(first, answer.body, after)
            case ResponseCode.PULL_RETRY_IMMEDIATELY:
                after = int(answer.ext["nextBeginOffset"])
                if after > first:
                    if answer.remark == _REMOVING:
                        self._lose(first, min(after, end))
                    elif self.is_open:
                        self.note_gap(first, min(after, end))
                    return PulledRecords(first, b"", after)
                raise CallError(f"{answer.remark} at offset {first}")
            case ResponseCode.PULL_NOT_FOUND if int(answer.ext.get("nextBeginOffset", first)) <= first:
                raise _NotShown
            case ResponseCode.PULL_OFFSET_MOVED | ResponseCode.PULL_NOT_FOUND:
                if _has_reset(answer):
                    raise _Repeat
                after = int(answer.ext.get("nextBeginOffset", first))
                after = min(after, end) if after > first else end
                self._lose(first, after)
                return PulledRecords(first, b"", after)
            case code if code in BUSY:
                raise CallError(f"it is busy: {answer.remark}")
        if _changes_group(self._cluster, self._options, self.range.queue.broker, answer):
            raise _Repeat
        raise rejected(answer, f"broker {self.range.queue.broker}")

    def _wait_for_hidden(self, first: int) -> None:
        """Wait until the broker may show the message at `first`. Raises BrokerError after the last wait."""
        if self._hidden == len(HIDDEN_DELAYS_S):
            raise BrokerError(
                f"queue {self.range.queue}: the broker has [{first}, {self.range.end}), and does not show it: start "
                "the replicas that inSyncReplicas of the broker needs"
            )
        if not self._hidden:
            log.warning("queue %s: the broker does not show offset %d yet. The task waits.", self.range.queue, first)
        threading.Event().wait(HIDDEN_DELAYS_S[self._hidden])
        self._hidden += 1

    def note_gap(self, first: int, end: int) -> None:
        """Note offsets without a message between others, in an answer to a pull without a filter.

        Raises DataLossError if option failOnDataLoss is true. In a compacted topic of Apache, such offsets are usual.
        """
        if self._is_compacted is None:
            self._is_compacted = self._cluster.is_compacted(self.range.queue.topic, self.range.queue.broker)
        if not self._is_compacted:
            self._report(first, end, f"leaves out [{first}, {end}): the records are damaged or have expired")

    def _lose(self, first: int, end: int) -> None:
        """Note messages that no longer exist. Raises DataLossError if option failOnDataLoss is true."""
        self._report(first, end, f"no longer has [{first}, {end})")

    def _report(self, first: int, end: int, problem: str) -> None:
        text = f"queue {self.range.queue}: the broker {problem}"
        if self._options.fails_on_loss:
            raise DataLossError(f"{text}. Set failOnDataLoss to false to skip these messages")
        log.warning("%s. The read skips these %d messages, because failOnDataLoss is false.", text, end - first)
