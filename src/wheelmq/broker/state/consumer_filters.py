"""Expressions by which groups filter topics (RocketMQ: ConsumerFilterManager), kept in config/consumerFilter.json.

Heartbeats register them. A filter is dead once its group has no member or does not subscribe to its topic any more. It
stays for filter_data_clean_time_span, to show which version of a subscription the broker has seen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from wheelmq.broker.settings import ConsumptionSettings
from wheelmq.filter.bloom import BITS, bit_positions
from wheelmq.filter.expression import Condition, ExpressionError
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.wire.bodies import TAG, Body, Subscription
from wheelmq.store import config_file
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk
from wheelmq.system.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

SQL92 = "SQL92"
SHOWN_CHARS = 200
"""Characters of an expression that the log shows."""
DIED_BEFORE_START_MS = 30_000
"""Filters that were alive at the end of the last run count as dead since this time before the start."""


def compiled(expression_type: str, text: str) -> Condition:
    """Return the condition of an expression of a type other than tags. Raises ExpressionError."""
    if expression_type != SQL92:
        raise ExpressionError(f"unknown expression type {expression_type}: the types are {TAG} and {SQL92}")
    from wheelmq.filter.grammar import parse  # takes a third of a second, and few brokers need it

    return parse(text)


class Bits(Body):
    """The positions of a filter in Apache's bit maps."""

    bit_num: int = BITS
    bit_pos: tuple[int, ...] = ()


class FilterData(Body):
    """A filter in consumerFilter.json (RocketMQ: ConsumerFilterData); times in epoch milliseconds."""

    consumer_group: str = ""
    topic: str = ""
    expression: str = ""
    expression_type: str = SQL92
    born_time: int = 0
    dead_time: int = 0
    """Last time that it died. A value before `born_time` means that it is alive."""
    dead: bool = False
    client_version: int = 0
    bloom_filter_data: Bits | None = None


class TopicFilters(Body):
    topic: str = ""
    group_filter_data: dict[str, FilterData] = {}


class FilterTable(Body):
    filter_data_by_topic: dict[str, TopicFilters] = {}


class ConsumerFilter:
    __slots__ = ("condition", "data")

    def __init__(self, data: FilterData) -> None:
        self.data = data
        self.condition = compiled(data.expression_type, data.expression)

    @property
    def version(self) -> int:
        """The version of the subscription that last registered it."""
        return self.data.client_version

    @property
    def is_dead(self) -> bool:
        return self.data.dead_time >= self.data.born_time


class ConsumerFilters:
    """Filters by group and topic. Changes are written to disk every few seconds, and at a clean stop."""

    def __init__(self, disk: Disk, paths: StorePaths, clock: Clock, settings: ConsumptionSettings) -> None:
        self._log = RateLimitedLog(log, clock.monotonic)
        self._disk = disk
        self._path = paths.config_file("consumerFilter.json")
        self._clock = clock
        self._kept_ms = settings.filter_kept_ms
        self._by_group: dict[str, dict[str, ConsumerFilter]] = {}
        self._dirty = False
        self.changes = 0
        """Changes since the start. Replicas fetch the table when it differs."""
        self._is_on = settings.filter_by_properties
        """While it is off, the file stays as it is."""
        if self._is_on:
            compiled(SQL92, "TRUE")  # loads the grammar before the broker serves
            self._load()

    def find(self, topic: str, group: str) -> ConsumerFilter | None:
        return self._by_group.get(group, {}).get(topic)

    def register(self, group: str, subscriptions: Iterable[Subscription]) -> Iterator[None]:
        """Register the expressions of a heartbeat, one per step. A wrong one leaves its topic without a filter."""
        if not self._is_on:
            return
        topics = set()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            if not subscription.is_by_tags and subscription.sub_string:
                self._register(group, subscription)
                yield
        for topic, known in self._by_group.get(group, {}).items():
            if topic not in topics:
                self._bury(known)

    def unregister(self, group: str) -> None:
        for known in self._by_group.get(group, {}).values():
            self._bury(known)

    def save_job(self) -> Callable[[], None] | None:
        """Return the job that writes the file, also off the loop; None without changes. Failed writes are repeated."""
        self._clean()
        if not self._dirty:
            return None
        self._dirty = False
        table = self.table()

        def job() -> None:
            try:
                config_file.save(self._disk, self._path, table)
            except BaseException:
                self._dirty = True
                raise

        return job

    def _register(self, group: str, subscription: Subscription) -> None:
        filters = self._by_group.setdefault(group, {})
        old = filters.get(subscription.topic)
        version = subscription.sub_version
        if old is not None and version < old.version:
            return
        is_same = old is not None and (old.data.expression_type, old.data.expression) == (
            subscription.expression_type,
            subscription.sub_string,
        )
        if old is not None and (is_same or version == old.version):
            self._revive(old, version)
            return
        try:
            filters[subscription.topic] = self._made(group, subscription)
            self._note_change()
        except ExpressionError as error:
            shown = subscription.sub_string[:SHOWN_CHARS]
            self._log.warn(
                "filter", "group %s, topic %s: %r is not a valid filter: %s", group, subscription.topic, shown, error
            )
            if filters.pop(subscription.topic, None) is not None:
                self._note_change()
            if not filters:
                del self._by_group[group]

    def _made(self, group: str, subscription: Subscription) -> ConsumerFilter:
        topic = subscription.topic
        data = FilterData(
            consumer_group=group,
            topic=topic,
            expression=subscription.sub_string,
            expression_type=str(subscription.expression_type),
            born_time=self._clock.now_ms(),
            client_version=subscription.sub_version,
            bloom_filter_data=Bits(bit_pos=bit_positions(f"{group}#{topic}")),
        )
        return ConsumerFilter(data)

    def _revive(self, known: ConsumerFilter, version: int) -> None:
        if known.is_dead or version != known.version:
            self._note_change()
        known.data.client_version = version
        if known.is_dead:
            known.data.dead_time = 0

    def _bury(self, known: ConsumerFilter) -> None:
        if not known.is_dead:
            known.data.dead_time = max(self._clock.now_ms(), known.data.born_time)
            self._note_change()

    def _clean(self) -> None:
        before_ms = self._clock.now_ms() - self._kept_ms
        for known in [one for one in self._all() if one.is_dead and one.data.dead_time <= before_ms]:
            group, topic = known.data.consumer_group, known.data.topic
            del self._by_group[group][topic]
            if not self._by_group[group]:
                del self._by_group[group]
            self._note_change()

    def _note_change(self) -> None:
        self._dirty = True
        self.changes += 1

    def _all(self) -> Iterator[ConsumerFilter]:
        for filters in self._by_group.values():
            yield from filters.values()

    def table(self) -> FilterTable:
        """Return all filters in the form of consumerFilter.json."""
        table = FilterTable()
        for known in self._all():
            of_topic = table.filter_data_by_topic.setdefault(known.data.topic, TopicFilters(topic=known.data.topic))
            copy = FilterData(**{name: getattr(known.data, name) for name in FilterData.__struct_fields__})
            copy.dead = known.is_dead
            of_topic.group_filter_data[known.data.consumer_group] = copy
        return table

    def follow(self, table: FilterTable) -> None:
        """Take over all filters of the master of this replica."""
        if self._is_on:
            self._by_group.clear()
            self._take(table, self._clock.now_ms())
            self._note_change()

    def _load(self) -> None:
        """Load the file. Filters that were alive are dead until a heartbeat registers them."""
        table = config_file.load(self._disk, self._path, FilterTable) or FilterTable()
        self._take(table, self._clock.now_ms() - DIED_BEFORE_START_MS)

    def _take(self, table: FilterTable, died_ms: int) -> None:
        """Add the filters of `table`. Filters without a time of death have died at `died_ms`."""
        for topic, of_topic in table.filter_data_by_topic.items():
            for group, data in of_topic.group_filter_data.items():
                data.topic, data.consumer_group = topic, group
                data.bloom_filter_data = Bits(bit_pos=bit_positions(f"{group}#{topic}"))
                if data.dead_time == 0:
                    data.dead_time = max(died_ms, data.born_time)
                try:
                    self._by_group.setdefault(group, {})[topic] = ConsumerFilter(data)
                except ExpressionError as error:
                    log.warning(
                        "%s: %r of group %s is not a valid filter: %s",
                        self._path,
                        data.expression[:SHOWN_CHARS],
                        group,
                        error,
                    )
                    self._dirty = True
