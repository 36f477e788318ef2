"""Asks the brokers for the queues of a source, and finds the offsets at which it starts and ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark_rocketmq.cluster import Cluster, TopicGone
from pyspark_rocketmq.errors import BrokerError, DataLossError, OptionError
from pyspark_rocketmq.offsets import EARLIEST, LATEST, Offsets, OffsetSpan, Queue, check_complete
from pyspark_rocketmq.options import GROUP, Place, SourceOptions
from pyspark_rocketmq.pulls import is_within
from pyspark_rocketmq.ranges import Loss, Survey
from wheelmq.formats.units import Millis
from wheelmq.formats.wire.codes import ResponseCode

log = logging.getLogger(__name__)


def survey(cluster: Cluster, options: SourceOptions, known: Offsets | None = None) -> Survey:
    """Return the queues of the chosen topics.

    With `known` offsets, brokers may be silent: they restart, or their machine is down. Without them, each must answer,
    and each topic must exist. Raises OptionError, BrokerError.
    """
    surveyor = _Surveyor(cluster, is_running=known is not None)
    topics = cluster.topics(options.topics)
    if not topics and known is None:
        raise OptionError(f"topicsPattern is {options.topics.pattern!r}, which matches no topic: correct it")
    for topic in topics:
        try:
            surveyor.ask_brokers(cluster.queues(topic))
        except TopicGone as error:
            if known is None:
                raise OptionError(f"{'topic' if len(topics) == 1 else 'topics'}: {error}") from None
    if known is not None:
        surveyor.find(known)
    spans = surveyor.spans | _with_hidden(cluster, options, surveyor.spans, known or {})
    return Survey(spans, frozenset(surveyor.silent), frozenset(surveyor.waiting), frozenset(surveyor.gone))


class _Surveyor:
    """Asks brokers for their queues. Only the answer of a broker makes a queue or a topic count as deleted."""

    def __init__(self, cluster: Cluster, *, is_running: bool) -> None:
        self._cluster = cluster
        self._is_running = is_running
        """Whether the stream runs, so that brokers may be silent."""
        self.spans: dict[Queue, OffsetSpan] = {}
        self.silent: set[str] = set()
        self.waiting: set[Queue] = set()
        self.gone: set[tuple[str, str]] = set()

    def ask_brokers(self, queues: list[Queue]) -> None:
        """Ask the brokers of the queues in the route of a topic. Raises BrokerError."""
        for topic, broker in sorted({(queue.topic, queue.broker) for queue in queues}):
            found = self._ask(topic, broker)
            self.spans |= {queue: found[queue] for queue in queues if queue in found}

    def find(self, known: Offsets) -> None:
        """Ask the brokers of the known queues that no route has. Raises BrokerError.

        A broker that registers again, or a name server that has just started, has no route for a moment.
        """
        missing = [queue for queue in known if queue not in self.spans and not self._is_explained(queue)]
        if not missing:
            return
        absent = {queue.broker for queue in missing} - self._cluster.registered()
        for broker in sorted(absent):
            log.warning("broker %s is not registered at the name server. The queues of the broker wait.", broker)
        self.silent |= absent
        for topic, broker in sorted({(queue.topic, queue.broker) for queue in missing}):
            found = self._ask(topic, broker)
            self.waiting |= {queue for queue in missing if queue in found}
        for queue in sorted(self.waiting):
            log.warning("queue %s is not in the route of its topic, or not readable. It waits.", queue)

    def _is_explained(self, queue: Queue) -> bool:
        return queue.broker in self.silent or (queue.topic, queue.broker) in self.gone

    def _ask(self, topic: str, broker: str) -> dict[Queue, OffsetSpan]:
        """Return the queues of a topic at a broker; none if it is silent or does not have the topic."""
        if broker in self.silent:
            return {}
        try:
            return self._cluster.spans(topic, broker)
        except BrokerError as error:
            if not self._is_running:
                raise
            if error.answer is not None and error.answer.code == ResponseCode.TOPIC_NOT_EXIST:
                self.gone.add((topic, broker))
                return {}
            log.warning("%s. The queues of the broker wait.", error)
            self.silent.add(broker)
            return {}


def _with_hidden(
    cluster: Cluster, options: SourceOptions, spans: Mapping[Queue, OffsetSpan], known: Offsets
) -> dict[Queue, OffsetSpan]:
    """Return the spans of queues that end before their `known` offset, because the broker hides the rest.

    A broker that lost its last queue units in a power cut hides messages that it had shown, until its replicas have
    them. Such a span ends at the known offset.
    """
    beyond = {queue: offset for queue, offset in known.items() if queue in spans and offset > spans[queue].end}
    return {
        queue: spans[queue]._replace(end=offset)
        for queue, offset in beyond.items()
        if is_within(cluster, options, queue, offset)
    }


def resolve(
    cluster: Cluster, options: SourceOptions, found: Survey, *, is_start: bool, now_ms: Millis
) -> dict[Queue, int]:
    """Return the offset of each queue for the options of the start or the end. Raises OptionError, BrokerError."""
    place, time = (options.start, options.start_time) if is_start else (options.end, options.end_time)
    if time is not None:
        moment_ms = time.since_epoch_ms(now_ms)
        return {queue: _within(span, cluster.offset_at(queue, moment_ms)) for queue, span in found.spans.items()}
    if place == GROUP:
        return {queue: _of_group(cluster, options.group, queue, span) for queue, span in found.spans.items()}
    if isinstance(place, dict):
        check_complete("startingOffsets" if is_start else "endingOffsets", place, found.spans)
        return {queue: _of_place(offset, found.spans[queue]) for queue, offset in place.items()}
    return {queue: _of_place(place, span) for queue, span in found.spans.items()}


def report(losses: list[Loss], *, fails: bool) -> int:
    """Log losses and return the number of lost messages. Raises DataLossError if option failOnDataLoss is true."""
    for loss in losses:
        if fails:
            raise DataLossError(f"{loss.text}. Set failOnDataLoss to false to continue with the messages after that")
        log.warning("%s. The query continues, because failOnDataLoss is false.", loss.text)
    return sum(loss.rows for loss in losses)


def _of_place(place: Place, span: OffsetSpan) -> int:
    if place == EARLIEST:
        return span.first
    return span.end if place == LATEST else int(place)  # type: ignore[arg-type]


def _of_group(cluster: Cluster, group: str, queue: Queue, span: OffsetSpan) -> int:
    committed = cluster.committed(group, queue)
    return span.first if committed is None else committed


def _within(span: OffsetSpan, offset: int) -> int:
    return min(max(offset, span.first), span.end)
