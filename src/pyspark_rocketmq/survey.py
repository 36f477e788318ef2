"""Asks the brokers for the queues of a source, and finds the offsets at which it starts and ends."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pyspark_rocketmq.cluster import Cluster, TopicGone
from pyspark_rocketmq.errors import BrokerError, DataLossError, OptionError, SilentNames
from pyspark_rocketmq.offsets import EARLIEST, LATEST, Offsets, OffsetSpan, Queue, check_complete
from pyspark_rocketmq.options import GROUP, Place, SourceOptions
from pyspark_rocketmq.pulls import is_within
from pyspark_rocketmq.ranges import Loss, Survey
from wheelmq.formats.units import Millis
from wheelmq.formats.wire.codes import ResponseCode

log = logging.getLogger(__name__)


def survey(
    cluster: Cluster,
    options: SourceOptions,
    known: Offsets | None = None,
    left: Offsets | None = None,
    *,
    asks_left: bool = False,
) -> Survey:
    """Return the queues of the chosen topics.

    With `known` offsets, servers may be silent: they restart, or their machine is down. Without them, each must answer,
    and each topic must exist. Queues that have left the stream may be away for ever: with `asks_left`, their brokers
    are asked for them, without warnings. Raises OptionError, BrokerError.
    """
    left = left or {}
    surveyor = _Surveyor(cluster, options, is_running=known is not None)
    try:
        surveyor.ask_routes()
        surveyor.find(known or {})
        if asks_left:
            surveyor.find_left(left)
    except SilentNames as error:
        if known is None:
            raise
        surveyor.problems["namesrvAddr"] = f"{error}. The stream continues with the brokers that it knows."
        surveyor.ask_brokers(known)
    surveyor.check_ends({**left, **(known or {})})
    return surveyor.survey()


class _Surveyor:
    """Asks brokers for their queues. Only the answer of a broker makes a queue or a topic count as deleted."""

    def __init__(self, cluster: Cluster, options: SourceOptions, *, is_running: bool) -> None:
        self._cluster = cluster
        self._options = options
        self._is_running = is_running
        """Whether the stream runs, so that brokers may be silent."""
        self._spans: dict[Queue, OffsetSpan] = {}
        self._silent: set[str] = set()
        self._waiting: set[Queue] = set()
        self._gone: set[tuple[str, str]] = set()
        self.problems: dict[str, str] = {}

    def survey(self) -> Survey:
        sets = frozenset(self._silent), frozenset(self._waiting), frozenset(self._gone)
        return Survey(self._spans, *sets, self.problems)

    def ask_routes(self) -> None:
        """Ask the brokers in the routes of the chosen topics. Raises OptionError, BrokerError."""
        chosen = self._options.topics
        topics = self._cluster.topics(chosen)
        if not topics and not self._is_running:
            raise OptionError(f"topicsPattern is {chosen.pattern!r}, which matches no topic: correct it")
        for topic in topics:
            try:
                self.ask_brokers(self._cluster.queues(topic))
            except TopicGone as error:
                if not self._is_running:
                    raise OptionError(f"{'topic' if len(topics) == 1 else 'topics'}: {error}") from None

    def ask_brokers(self, queues: Iterable[Queue]) -> None:
        """Ask the brokers of these queues. Raises BrokerError."""
        queues = [queue for queue in queues if queue not in self._spans]
        for topic, broker in sorted({(queue.topic, queue.broker) for queue in queues}):
            found = self._ask(topic, broker)
            self._spans |= {queue: found[queue] for queue in queues if queue in found}

    def find(self, known: Offsets) -> None:
        """Ask the brokers of the known queues that no route has. Raises BrokerError.

        A broker that registers again, or a name server that has just started, has no route for a moment.
        """
        missing = [queue for queue in known if queue not in self._spans and not self._is_explained(queue)]
        if not missing:
            return
        for broker in {queue.broker for queue in missing} - self._cluster.registered():
            self._note_silence(broker, f"broker {broker} is not registered at the name server")
        for topic, broker in sorted({(queue.topic, queue.broker) for queue in missing}):
            found = self._ask(topic, broker)
            self._waiting |= {queue for queue in missing if queue in found}
        for queue in self._waiting:
            self.problems[str(queue)] = f"queue {queue} is not in the route of its topic, or not readable. It waits."

    def find_left(self, left: Offsets) -> None:
        """Ask the brokers of queues that have left the stream, without warnings. Raises BrokerError."""
        problems = dict(self.problems)
        self.find(left)
        self.problems = problems

    def check_ends(self, known: Offsets) -> None:
        """Correct the ends of queues that end before their known offset, because the broker hides the rest.

        A broker that lost its last queue units in a power cut hides messages that it had shown, until its replicas have
        them. Raises BrokerError.
        """
        for queue, offset in known.items():
            span = self._spans.get(queue)
            if span is None or offset <= span.end:
                continue
            try:
                if is_within(self._cluster, self._options, queue, offset):
                    self._spans[queue] = span._replace(end=offset)
            except BrokerError as error:
                self._note_absence(error, queue.topic, queue.broker)
                self._spans = {queue: span for queue, span in self._spans.items() if not self._is_explained(queue)}

    def _is_explained(self, queue: Queue) -> bool:
        return queue.broker in self._silent or (queue.topic, queue.broker) in self._gone

    def _ask(self, topic: str, broker: str) -> dict[Queue, OffsetSpan]:
        """Return the queues of a topic at a broker; none if it is silent or does not have the topic.

        Raises BrokerError for any other rejection: no wait gives the user a right.
        """
        if broker in self._silent:
            return {}
        try:
            return self._cluster.spans(topic, broker)
        except BrokerError as error:
            self._note_absence(error, topic, broker)
            return {}

    def _note_absence(self, error: BrokerError, topic: str, broker: str) -> None:
        """Note that a broker is silent or busy, or does not have a topic. Raises BrokerError for any other error."""
        is_gone = error.answer is not None and error.answer.code == ResponseCode.TOPIC_NOT_EXIST
        if not self._is_running or not (is_gone or error.is_passing):
            raise error
        if is_gone:
            self._gone.add((topic, broker))
        else:
            self._note_silence(broker, str(error))

    def _note_silence(self, broker: str, problem: str) -> None:
        self._silent.add(broker)
        self.problems[broker] = f"{problem}. The queues of the broker wait."


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
