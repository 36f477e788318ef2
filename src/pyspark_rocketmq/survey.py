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

log = logging.getLogger(__name__)


def survey(cluster: Cluster, options: SourceOptions, known: Offsets | None = None) -> Survey:
    """Return the queues of the chosen topics.

    With `known` offsets, brokers may be silent: they restart, or their machine is down. Without them, each must answer.
    Raises OptionError for a topic that does not exist, unless `known` has it. Raises BrokerError.
    """
    known_topics = {queue.topic for queue in known or ()}
    spans: dict[Queue, OffsetSpan] = {}
    silent: set[str] = set()
    topics = cluster.topics(options.topics)
    if not topics and not known_topics:
        raise OptionError(f"topicsPattern is {options.topics.pattern!r}, which matches no topic: correct it")
    for topic in topics:
        try:
            queues = cluster.queues(topic)
        except TopicGone as error:
            if topic in known_topics:
                continue
            raise OptionError(f"{'topic' if len(topics) == 1 else 'topics'}: {error}") from None
        for broker in sorted({queue.broker for queue in queues} - silent):
            try:
                found = cluster.spans(topic, broker)
            except BrokerError as error:
                if known is None:
                    raise
                log.warning("%s. The queues of the broker wait.", error)
                silent.add(broker)
                continue
            spans |= {queue: found[queue] for queue in queues if queue in found}
    spans |= _with_hidden(cluster, options, spans, known or {})
    missing = {queue.broker for queue in known or () if queue not in spans} - silent
    if missing:
        absent = missing - cluster.registered()
        for broker in sorted(absent):
            log.warning("broker %s is not registered at the name server. The queues of the broker wait.", broker)
        silent |= absent
    return Survey(spans, frozenset(silent))


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
