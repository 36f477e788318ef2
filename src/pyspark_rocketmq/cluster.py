"""A blocking client of name servers and brokers, for Spark's planner and its tasks.

Requests without an answer are repeated, and so are those to a busy broker: a broker that restarts answers again within
seconds.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec

from pyspark_rocketmq.errors import BrokerError, OptionError, SilentBroker, SilentNames
from pyspark_rocketmq.offsets import OffsetSpan, Queue
from pyspark_rocketmq.options import ChosenTopics, ConnectionOptions, Filter
from pyspark_rocketmq.retries import BUSY
from wheelmq.formats import names
from wheelmq.formats.units import Millis
from wheelmq.formats.wire import administration, bodies, headers, queue_tables
from wheelmq.formats.wire.bodies import (
    PERM_READ,
    PERM_WRITE,
    BodyError,
    ClientCheck,
    ClusterInfo,
    QueueData,
    Route,
    TopicConfig,
)
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.sync_connection import SyncConnection
from wheelmq.system.tls_client import client_tls

log = logging.getLogger(__name__)

B = TypeVar("B")

RETRY_DELAYS_S: Final = (0.2, 0.5, 1.0, 2.0)
"""Waits before a request without an answer is repeated."""


class TopicGone(LookupError):
    """The name servers know no such topic."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"the name server does not know topic {topic}: check its name, or create it")
        self.topic = topic


class Cluster:
    """The servers of one RocketMQ cluster. A thread of its own uses each object."""

    def __init__(self, options: ConnectionOptions, retry_delays_s: Sequence[float] = RETRY_DELAYS_S) -> None:
        self._options = options
        self._retry_delays_s = retry_delays_s
        self._tls = client_tls(options.tls)
        self._sign = None if options.access_key is None else options.access_key.sign
        self._links: dict[str, SyncConnection] = {}
        self._masters: dict[str, str] = {}
        """Last known address of each broker."""
        self.rejected_groups: set[tuple[str, str]] = set()
        """The groups of pulls that brokers have rejected, each after its broker."""
        self._are_names_silent = False
        """Whether no name server answered last. Then requests to them are not repeated, so that a stream goes on."""

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def addresses(self) -> Mapping[str, str]:
        """The last known address of each broker."""
        return self._masters

    def learn(self, addresses: Mapping[str, str]) -> None:
        """Use these addresses of brokers until the name servers have others."""
        self._masters |= addresses

    # Topics and queues ---------------------------------------------------------------------------------------------

    def topics(self, chosen: ChosenTopics) -> list[str]:
        """Return the names of the topics: those of the option, or those that match its pattern."""
        if chosen.pattern is None:
            return list(chosen.names)
        answer = self._ask_names(Command(code=RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        known = read_body(answer, administration.TopicList).topic_list
        pattern = re.compile(chosen.pattern)
        matching = {topic for topic in known if pattern.fullmatch(topic)}
        servers = self._clusters() if matching else ClusterInfo()
        server_names = {*servers.cluster_addr_table, *servers.broker_addr_table}
        return sorted(topic for topic in matching if not names.is_internal_topic(topic, server_names))

    def queues(self, topic: str) -> list[Queue]:
        """Return the readable queues of `topic`. Raises TopicGone, BrokerError."""
        return [
            Queue(topic, data.broker_name, number)
            for data in self._route(topic)
            if data.perm & PERM_READ
            for number in range(data.read_queue_nums)
        ]

    def writable(self, topic: str) -> dict[str, int]:
        """Return the number of writable queues of `topic` at each broker. Raises TopicGone, BrokerError."""
        return {
            data.broker_name: data.write_queue_nums
            for data in self._route(topic)
            if data.perm & PERM_WRITE and data.write_queue_nums
        }

    def _route(self, topic: str) -> list[QueueData]:
        """Return the queues of `topic` at each broker with a registered master."""
        answer = self._ask_names(Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic}), topic)
        route = read_body(answer, Route)
        masters = bodies.masters(route.broker_datas)
        self._masters |= masters
        return [data for data in route.queue_datas if data.broker_name in masters]

    def spans(self, topic: str, broker: str) -> dict[Queue, OffsetSpan]:
        """Return the first and the end offset of each queue of `topic` at `broker`. Raises BrokerError."""
        request = Command(code=RequestCode.GET_TOPIC_STATS_INFO, ext=headers.write(headers.TopicHeader(topic=topic)))
        stats = read_body(self.ask(broker, request), administration.TopicStats).offset_table
        return {
            Queue(topic, broker, name.queue_id): OffsetSpan(max(0, span.min_offset), max(0, span.max_offset))
            for name, span in queue_tables.by_queue(stats).items()
        }

    def is_compacted(self, topic: str, broker: str) -> bool:
        """Return whether a broker of Apache keeps only the last message of each key of `topic`. Raises BrokerError."""
        answer = self.call(broker, Command(code=RequestCode.GET_TOPIC_CONFIG, ext={"topic": topic}))
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return False  # such a broker is older than compacted topics
        return read_body(_accepted(answer, broker), TopicConfig).attributes.get("cleanup.policy") == "COMPACTION"

    def registered(self) -> set[str]:
        """Return the names of all brokers with a registered master, and learn its address. Raises BrokerError."""
        masters = bodies.masters(self._clusters().broker_addr_table.values())
        self._masters |= masters
        return set(masters)

    def _clusters(self) -> ClusterInfo:
        return read_body(self._ask_names(Command(code=RequestCode.GET_BROKER_CLUSTER_INFO)), ClusterInfo)

    def offset_at(self, queue: Queue, time_ms: Millis) -> int:
        """Return the queue offset of the first message that was stored at `time_ms` or later."""
        header = headers.SearchOffsetHeader(topic=queue.topic, queue_id=queue.number, timestamp=time_ms)
        request = Command(code=RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext=headers.write(header))
        return int(self.ask(queue.broker, request).ext["offset"])

    # Groups --------------------------------------------------------------------------------------------------------

    def committed(self, group: str, queue: Queue) -> int | None:
        """Return the offset that `group` has committed, or None."""
        header = headers.QueryConsumerOffsetHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.number, set_zero_if_not_found=False
        )
        request = Command(code=RequestCode.QUERY_CONSUMER_OFFSET, ext=headers.write(header))
        answer = self.call(queue.broker, request)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return int(_accepted(answer, queue.broker).ext["offset"])

    def commit(self, group: str, queue: Queue, offset: int) -> None:
        """Store the offset of `group` at the broker of `queue`. Raises BrokerError."""
        header = headers.UpdateConsumerOffsetHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.number, commit_offset=offset
        )
        self.ask(queue.broker, Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, ext=headers.write(header)))

    def check_filter(self, group: str, topic: str, chosen: Filter, brokers: Iterable[str]) -> None:
        """Have each broker check the expression of option sql. Raises OptionError with its reason."""
        if chosen.sql is None:
            return
        body = bodies.write(
            ClientCheck(client_id="pyspark_rocketmq", group=group, subscription_data=chosen.subscription(topic))
        )
        for broker in brokers:
            answer = self.call(broker, Command(code=RequestCode.CHECK_CLIENT_CONFIG, body=body))
            if answer.code != ResponseCode.SUCCESS:
                raise OptionError(
                    f"broker {broker} rejects sql {chosen.sql!r}: {answer.remark}. Correct the expression; the broker "
                    "needs enablePropertyFilter=true"
                )

    # Requests ------------------------------------------------------------------------------------------------------

    def ask(self, broker: str, command: Command) -> Command:
        """Return the answer of a broker's master. Raises BrokerError without one, or with a code other than SUCCESS."""
        return _accepted(self.call(broker, command), broker)

    def call(self, broker: str, command: Command) -> Command:
        """Return the answer of a broker's master, with any code. Raises SilentBroker without one."""
        for delay_s in (*self._retry_delays_s, None):
            try:
                answer = self.link(broker).call(command)
                if answer.code not in BUSY or delay_s is None:
                    return answer
                log.info("broker %s is busy, the request is repeated: %s", broker, answer.remark)
                threading.Event().wait(delay_s)
            except CallError as error:
                if delay_s is None:
                    raise SilentBroker(
                        f"broker {broker} does not answer: {error}. Start it, or check the network"
                    ) from None
                log.info("broker %s does not answer, the request is repeated: %s", broker, error)
                threading.Event().wait(delay_s)
        raise AssertionError("unreachable")

    def link(self, broker: str) -> SyncConnection:
        """Return the connection to a broker's master. Raises SilentBroker for a broker that no route has named."""
        address = self._masters.get(broker)
        if address is None:
            raise SilentBroker(f"broker {broker} is not registered at the name server: start it, or check its name")
        return self._link(address)

    def locate(self, topic: str, broker: str) -> None:
        """Learn the address of `broker` from the route of `topic`. Raises TopicGone, BrokerError."""
        if broker not in self._masters:
            self.relocate(topic)

    def relocate(self, topic: str) -> None:
        """Learn the current addresses of the brokers of `topic`. Raises TopicGone, BrokerError."""
        self._route(topic)

    def _link(self, address: str) -> SyncConnection:
        if address not in self._links:
            self._links[address] = SyncConnection(address, self._options.timeout_s, self._tls, self._sign)
        return self._links[address]

    def _ask_names(self, command: Command, topic: str | None = None) -> Command:
        """Return the answer of the first name server that is ready. Raises TopicGone, SilentNames, BrokerError."""
        problems: list[str] = []
        for delay_s in (None,) if self._are_names_silent else (*self._retry_delays_s, None):
            problems.clear()
            for address in self._options.namesrv:
                try:
                    answer = self._link(address).call(command)
                except CallError as error:
                    problems.append(str(error))
                    continue
                if _is_not_ready(answer):
                    problems.append(f"{address}: {Refused(answer)}")
                    continue
                self._are_names_silent = False
                if answer.code == ResponseCode.TOPIC_NOT_EXIST and topic is not None:
                    raise TopicGone(topic)
                if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise OptionError(
                        f"namesrvAddr names {address}, which is no name server: it is probably a broker. Name servers "
                        "usually have port 9876"
                    )
                return _accepted(answer, address)
            if delay_s is not None:
                threading.Event().wait(delay_s)
        self._are_names_silent = True
        raise SilentNames(f"no name server of namesrvAddr answers: {'; '.join(problems)}")


def _is_not_ready(answer: Command) -> bool:
    """Return whether a name server answers that it is busy, or has just started (needWaitForService)."""
    return answer.code in BUSY or (answer.code == ResponseCode.SYSTEM_ERROR and "not ready" in (answer.remark or ""))


def _accepted(answer: Command, server: str) -> Command:
    """Return `answer`. Raises BrokerError for a code other than SUCCESS."""
    if answer.code == ResponseCode.SUCCESS:
        return answer
    raise rejected(answer, server)


def rejected(answer: Command, server: str) -> BrokerError:
    """Return the error for an answer with a code other than SUCCESS, with a remedy if there is a known one."""
    remedy = access_remedy(answer) or _REMEDIES.get(answer.code, "")
    return BrokerError(f"{server} rejects a request: {Refused(answer)}{'. ' + remedy if remedy else ''}", answer)


def access_remedy(answer: Command) -> str:
    """Return the remedy if `answer` says that a right is missing. Apache reports it also with other codes."""
    if answer.code == ResponseCode.NO_PERMISSION or "AclException" in (answer.remark or ""):
        return "Give the rights to the key of options accessKey and secretKey, or give another key"
    return ""


def read_body(answer: Command, body: type[B]) -> B:
    """Return the body of an answer. Raises BrokerError."""
    try:
        return bodies.read(answer.body, body)
    except (BodyError, msgspec.DecodeError) as error:
        raise BrokerError(f"the answer of a server cannot be decoded: {error}") from None


_REMEDIES: Final[dict[int, str]] = {
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "Create the group, or give another one with option group",
    ResponseCode.TOPIC_NOT_EXIST: "Check the name of the topic, or create the topic",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "Correct option tags or sql",
}
