"""Administration: topics, groups, messages, brokers (RocketMQ: DefaultMQAdminExt)."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from wheelmq.client import offsets, timers
from wheelmq.client.delays import TimeMs, whole
from wheelmq.client.message import ReceivedMessage, read_records, received
from wheelmq.client.outgoing import check_group, check_topic
from wheelmq.client.routes import NoBroker, TopicRoute, TopicUnknown
from wheelmq.client.session import Session
from wheelmq.client.timers import PendingTimer
from wheelmq.formats import names
from wheelmq.formats.disk.message_id import parse_offset_message_id
from wheelmq.formats.units import NEVER_MS
from wheelmq.formats.wire import administration, bodies, client_calls, headers, queue_tables
from wheelmq.formats.wire.administration import Connected, GroupQueueOffsets, QueueSpan
from wheelmq.formats.wire.bodies import (
    PERM_READ,
    PERM_WRITE,
    ClusterInfo,
    GroupConfig,
    Heartbeat,
    QueueName,
    TopicConfig,
)
from wheelmq.formats.wire.client_calls import DirectlyConsumed, RunningInfo
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import Header
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.formats.wire.timer_requests import TimerQuery
from wheelmq.net.errors import CallError, Refused
from wheelmq.system.backports import timeout
from wheelmq.system.clock import Clock, SystemClock
from wheelmq.system.tls_client import Tls

if TYPE_CHECKING:
    from typing_extensions import Self

B = TypeVar("B")

FOUND_MAX: Final = 64
SEEN_S: Final = 0.05
"""Interval at which a name server is asked for a new topic."""
TIME_MS_MAX: Final = (1 << 63) - 1


class Span(NamedTuple):
    """The messages of a queue: queue offsets from `start` to before `end`."""

    start: int
    end: int


class Admin:
    """`async with Admin("127.0.0.1:9876") as admin: await admin.create_topic("Orders", queues=8)`

    Each method raises CallError if a server does not answer, and Refused if a server rejects the request.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        timeout_ms: int = 5000,
        access_key: AccessKey | None = None,
        tls: Tls | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._timeout_s = timeout_ms / 1000
        self._session = Session(
            namesrv,
            clock=self._clock,
            beat=self._heartbeat,
            timeout_s=self._timeout_s,
            access_key=access_key,
            tls=tls,
        )

    async def start(self) -> None:
        """Do nothing: the first request opens the connections."""

    async def stop(self) -> None:
        await self._session.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # Brokers -------------------------------------------------------------------------------------------------------

    async def brokers(self) -> dict[str, str]:
        """Return the address of each master by broker name."""
        return await self._session.routes.brokers()

    async def clusters(self) -> dict[str, list[str]]:
        """Return the names of the brokers of each cluster."""
        return (await self.cluster_info()).cluster_addr_table

    async def cluster_info(self) -> ClusterInfo:
        """Return the registered brokers, masters and slaves, with their addresses and clusters."""
        answer = await self._session.routes.ask_servers(Command(code=RequestCode.GET_BROKER_CLUSTER_INFO))
        return _read(answer, ClusterInfo)

    async def runtime_info(self, broker_name: str) -> dict[str, str]:
        """Return the runtime information of a broker, by Apache's keys."""
        request = Command(code=RequestCode.GET_BROKER_RUNTIME_INFO)
        return _read(await self._ask_broker(broker_name, request), administration.NameTable).table

    async def broker_config(self, broker_name: str) -> dict[str, str]:
        answer = await self._ask_broker(broker_name, Command(code=RequestCode.GET_BROKER_CONFIG))
        lines = bytes(answer.body).decode("utf-8", "replace").splitlines()
        return {name: value for name, _, value in (line.partition("=") for line in lines) if name}

    async def update_broker_config(self, broker_name: str, values: Mapping[str, str]) -> None:
        """Change settings of a broker, by Apache's keys. The broker changes all of them, or none."""
        body = "".join(f"{name}={value}\n" for name, value in values.items()).encode()
        await self._ask_broker(broker_name, Command(code=RequestCode.UPDATE_BROKER_CONFIG, body=body))

    async def set_writable(self, broker_name: str, *, writable: bool) -> int:
        """Allow sends to a broker, or stop them, at every name server. Returns the number of changed topics."""
        name = "ADD_WRITE_PERM_OF_BROKER" if writable else "WIPE_WRITE_PERM_OF_BROKER"
        ext = headers.texts(brokerName=broker_name)
        counted = 0
        for server in self._session.routes.servers:
            answer = await self._ask(server, Command(code=RequestCode[name], ext=dict(ext)))
            counted = max(counted, int(answer.ext.get("addTopicCount" if writable else "wipeTopicCount", "0")))
        return counted

    # Topics --------------------------------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """Return all topics that the name server knows, including system topics."""
        answer = await self._session.routes.ask_servers(Command(code=RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        return sorted(_read(answer, administration.TopicList).topic_list)

    async def topic_configs(self) -> dict[str, dict[str, TopicConfig]]:
        """Return the topics of each master by broker name, with their settings."""
        request, body = Command(code=RequestCode.GET_ALL_TOPIC_CONFIG), bodies.TopicConfigTable
        return {name: found.topic_config_table for name, found in (await self._of_each(request, body)).items()}

    async def system_topics(self) -> set[str]:
        """Return the topics that brokers create for themselves."""
        request = Command(code=RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        found = await self._of_each(request, administration.TopicList)
        return {topic for one in found.values() for topic in one.topic_list}

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        read_queues: int | None = None,
        perm: int = PERM_READ | PERM_WRITE,
        order: bool = False,
        broker_name: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """Create or update `topic` at each broker, or at `broker_name`. Returns when the name server knows it.

        `queues` is the number per broker. `read_queues` is the number of those that consumers read, if it differs.
        `perm` is the sum of 2 (writable) and 4 (readable). Raises ValueError.
        """
        check_topic(topic)
        for count in (queues, queues if read_queues is None else read_queues):
            if not 0 < count < 1 << 16:
                raise ValueError(f"{count} queues: a topic has 1 to 65,535 at each broker")
        header = headers.CreateTopicHeader(
            topic=topic,
            read_queue_nums=queues if read_queues is None else read_queues,
            write_queue_nums=queues,
            perm=perm,
            default_topic=names.AUTO_CREATE_TOPIC,
            order=order,
        )
        text = ",".join(f"+{name}={value}" for name, value in (attributes or {}).items())
        ext = headers.write(header) | ({"attributes": text} if text else {})
        chosen = await self._chosen(broker_name)
        for address in chosen.values():
            await self._ask(address, Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext=dict(ext)))
        async with timeout(self._timeout_s):
            while not await self._is_known(topic, chosen):
                await asyncio.sleep(SEEN_S)

    async def delete_topic(self, topic: str) -> None:
        """Delete `topic` and its messages at every broker and name server. Raises ValueError."""
        check_topic(topic)
        ext = headers.write(headers.TopicHeader(topic=topic))
        for address in (await self.brokers()).values():
            await self._ask(address, Command(code=RequestCode.DELETE_TOPIC_IN_BROKER, ext=dict(ext)))
        for server in self._session.routes.servers:
            await self._ask(server, Command(code=RequestCode.DELETE_TOPIC_IN_NAMESRV, ext=dict(ext)))

    async def route(self, topic: str) -> TopicRoute:
        """Return the brokers and queues of `topic`. Raises TopicUnknown."""
        check_topic(topic)
        return await self._session.routes.fetch(topic)

    async def topic_stats(self, topic: str) -> dict[QueueName, QueueSpan]:
        """Return the offsets of each queue of `topic` and the time of its last message. Raises TopicUnknown."""
        found: dict[QueueName, QueueSpan] = {}
        for address in (await self.route(topic)).masters.values():
            answer = await self._ask(
                address, _request(RequestCode.GET_TOPIC_STATS_INFO, headers.TopicHeader(topic=topic))
            )
            found |= queue_tables.by_queue(_read(answer, administration.TopicStats).offset_table)
        return found

    async def spans(self, topic: str) -> dict[QueueName, Span]:
        """Return the first queue offset and the end offset of each queue. Raises TopicUnknown."""
        found = {}
        await self._session.routes.get(topic)
        for queue in (await self.route(topic)).readable:
            start = await offsets.end_offset(self._session, queue, is_last=False)
            found[queue] = Span(start, await offsets.end_offset(self._session, queue, is_last=True))
        return found

    async def offset_at(self, queue: QueueName, time_ms: TimeMs) -> int:
        """Return the queue offset of the first message stored at `time_ms` or later."""
        await self._session.routes.get(queue.topic)
        return await offsets.offset_at(self._session, queue, whole("time_ms", time_ms))

    # Groups --------------------------------------------------------------------------------------------------------

    async def group_configs(self) -> dict[str, dict[str, GroupConfig]]:
        """Return the consumer groups of each master by broker name, with their settings."""
        request = Command(code=RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        found = await self._of_each(request, administration.GroupConfigs)
        return {name: one.subscription_group_table for name, one in found.items()}

    async def create_group(self, group: str, config: GroupConfig | None = None) -> None:
        """Create or update a consumer group at every broker. Raises ValueError."""
        check_group(group)
        chosen = msgspec.structs.replace(config or GroupConfig(), group_name=group)
        for address in (await self.brokers()).values():
            body = bodies.write(chosen)
            await self._ask(address, Command(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))

    async def delete_group(self, group: str, *, offsets_too: bool = True) -> None:
        """Delete a consumer group at every broker. Raises ValueError."""
        check_group(group)
        header = headers.DeleteGroupHeader(group_name=group, clean_offset=offsets_too)
        for address in (await self.brokers()).values():
            await self._ask(address, _request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header))

    async def consumer_progress(self, group: str, topic: str | None = None) -> dict[QueueName, GroupQueueOffsets]:
        """Return the progress of a group in each queue of `topic`, or of all topics that it consumes."""
        header = headers.ConsumeStatsHeader(consumer_group=group, topic=topic)
        found: dict[QueueName, GroupQueueOffsets] = {}
        for address in (await self.brokers()).values():
            answer = await self._ask(address, _request(RequestCode.GET_CONSUME_STATS, header))
            found |= queue_tables.by_queue(_read(answer, administration.ConsumeStats).offset_table)
        return found

    async def consumers(self, group: str) -> list[Connected]:
        """Return the connected members of a group; an empty list if no broker has one."""
        found: dict[str, Connected] = {}
        header = headers.ConsumerGroupHeader(consumer_group=group)
        for address in (await self.brokers()).values():
            answer = await self._call(address, _request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header))
            if answer.code != ResponseCode.CONSUMER_NOT_ONLINE:
                connected = _read(answer, administration.GroupConnections).connection_set
                found |= {one.client_id: one for one in connected}
        return [found[client_id] for client_id in sorted(found)]

    async def running_info(self, group: str, client_id: str) -> RunningInfo:
        """Return the running information of one group member, from the first broker that knows it. Raises Refused."""
        header = client_calls.RunningInfoHeader(consumer_group=group, client_id=client_id)
        return _read(await self._of_member(RequestCode.GET_CONSUMER_RUNNING_INFO, header), RunningInfo)

    async def consume_directly(self, group: str, client_id: str, message: ReceivedMessage) -> DirectlyConsumed:
        """Have one member of a group consume a message now, independently of the group's offsets. Raises Refused."""
        header = client_calls.ConsumeDirectlyHeader(
            consumer_group=group,
            client_id=client_id,
            msg_id=message.message_id,
            broker_name=message.broker_name,
            topic=message.topic,
        )
        request = _request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        return _read(await self._ask_broker(message.broker_name, request), DirectlyConsumed)

    async def reset_offsets(self, group: str, topic: str, time_ms: TimeMs) -> dict[QueueName, int]:
        """Reset a group to the messages stored at `time_ms` or later. Returns the offsets. Raises TopicUnknown."""
        since_ms = whole("time_ms", time_ms)
        header = client_calls.ResetOffsetHeader(topic=topic, group=group, timestamp=since_ms, offset=-1, is_force=True)
        found: dict[QueueName, int] = {}
        for address in (await self.route(topic)).masters.values():
            answer = await self._ask(address, _request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header))
            found |= queue_tables.by_queue(_read(answer, administration.QueueOffsets).texts())
        return found

    # Messages ------------------------------------------------------------------------------------------------------

    async def find(
        self, topic: str, key: str, *, count: int = 32, begin_ms: int = 0, end_ms: int = TIME_MS_MAX
    ) -> list[ReceivedMessage]:
        """Return the messages of `topic` with a key, oldest first, at most `count` per broker.

        They are stored between `begin_ms` and `end_ms`. Raises TopicUnknown, MessageError.
        """
        found = await self._find(topic, key, count, begin_ms, end_ms, {})
        return [message for message in found if key in message.keys]

    async def find_unique(self, topic: str, unique_key: str) -> list[ReceivedMessage]:
        """Return the messages of `topic` with a unique key. Several messages are copies of one.
        Raises TopicUnknown, MessageError."""
        ext = {headers.UNIQUE_KEY_QUERY: "true"}
        found = await self._find(topic, unique_key, FOUND_MAX, 0, TIME_MS_MAX, ext)
        return [message for message in found if message.unique_key == unique_key]

    async def view(self, message_id: str) -> ReceivedMessage:
        """Return the message with the `message_id` in a send's result, which contains its broker. Raises ValueError."""
        host, position = parse_offset_message_id(message_id)
        family = socket.AF_INET if len(host.address) == 4 else socket.AF_INET6
        address = f"{socket.inet_ntop(family, host.address)}:{host.port}"
        request = _request(RequestCode.VIEW_MESSAGE_BY_ID, headers.ViewMessageHeader(offset=position))
        answer = await self._ask(address, request)
        names_by_address = {where: name for name, where in (await self.brokers()).items()}
        [record] = read_records(answer.body)
        return received(record, names_by_address.get(address, ""), self._clock.now_ms())

    async def _find(
        self, topic: str, key: str, count: int, begin_ms: int, end_ms: int, more: Mapping[str, str]
    ) -> list[ReceivedMessage]:
        header = headers.QueryMessageHeader(
            topic=topic, key=key, max_num=count, begin_timestamp=begin_ms, end_timestamp=end_ms
        )
        found: list[ReceivedMessage] = []
        for name, address in (await self.route(topic)).masters.items():
            request = Command(code=RequestCode.QUERY_MESSAGE, ext={**headers.write(header), **more})
            answer = await self._call(address, request)
            if answer.code == ResponseCode.QUERY_NOT_FOUND:
                continue
            if answer.code != ResponseCode.SUCCESS:
                raise Refused(answer)
            now_ms = self._clock.now_ms()
            found += [received(record, name, now_ms) for record in read_records(answer.body)]
        return sorted(found, key=lambda message: message.stored_ms)

    # Pending delayed messages, of WheelMQ's brokers ----------------------------------------------------------------

    async def timers(
        self, topic: str | None = None, *, from_ms: TimeMs = 0, to_ms: TimeMs = NEVER_MS
    ) -> list[PendingTimer]:
        """Return the pending delayed messages, sorted by due time, from `from_ms` to before `to_ms`."""
        asked = TimerQuery(topic, whole("from_ms", from_ms), whole("to_ms", to_ms))
        listed: list[PendingTimer] = []
        for name, address in (await self.brokers()).items():
            connection = self._session.connections.to(address)
            async for one in timers.listed(connection, self._timeout_s, asked):
                listed.append(msgspec.structs.replace(one, broker_name=name))
        return sorted(listed, key=lambda one: one.due_ms)

    async def count_timers(
        self, topic: str | None = None, *, from_ms: TimeMs = 0, to_ms: TimeMs = NEVER_MS, step_ms: int = 60_000
    ) -> dict[int, int]:
        """Return the number of pending messages due in each interval of `step_ms`, by its beginning."""
        asked = TimerQuery(topic, whole("from_ms", from_ms), whole("to_ms", to_ms))
        counts: Counter[int] = Counter()
        for address in (await self.brokers()).values():
            counts += await timers.counted(self._session.connections.to(address), self._timeout_s, step_ms, asked)
        return dict(sorted(counts.items()))

    async def find_timers(self, topic: str, key: str) -> list[PendingTimer]:
        """Return the delayed messages for `topic` with a unique or business key. Their `end` is None while pending."""
        found: list[PendingTimer] = []
        for name, address in (await self.brokers()).items():
            connection = self._session.connections.to(address)
            async for one in timers.found(connection, self._timeout_s, topic, key):
                found.append(msgspec.structs.replace(one, broker_name=name))
        return found

    async def timer_body(self, timer: PendingTimer) -> bytes:
        """Return the body of a delayed message that `timers` or `find_timers` returned. Raises MessageError."""
        address = self._address(timer.broker_name, await self.brokers())
        connection = self._session.connections.to(address)
        return await timers.body_of(connection, self._timeout_s, timer, self._clock.now_ms())

    # How -----------------------------------------------------------------------------------------------------------

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(client_id=self._session.client_id)

    async def _of_each(self, request: Command, body: type[B]) -> dict[str, B]:
        """Return the answer of each master by broker name."""
        addresses = await self.brokers()
        answers = await asyncio.gather(
            *(self._ask(address, Command(code=request.code, ext=dict(request.ext))) for address in addresses.values())
        )
        return {name: _read(answer, body) for name, answer in zip(addresses, answers, strict=True)}

    async def _chosen(self, broker_name: str | None) -> dict[str, str]:
        brokers = await self.brokers()
        if not brokers:
            raise NoBroker(f"no master is registered at {', '.join(self._session.routes.servers)}")
        if broker_name is None:
            return brokers
        return {broker_name: self._address(broker_name, brokers)}

    def _address(self, broker_name: str, brokers: Mapping[str, str]) -> str:
        if broker_name not in brokers:
            raise ValueError(f"there is no broker {broker_name}: {', '.join(brokers) or 'none is registered'}")
        return brokers[broker_name]

    async def _is_known(self, topic: str, brokers: Mapping[str, str]) -> bool:
        try:
            return set(brokers) <= set((await self.route(topic)).masters)
        except TopicUnknown:
            return False

    async def _of_member(self, code: RequestCode, header: Header) -> Command:
        problem: Refused | None = None
        for address in (await self._chosen(None)).values():
            answer = await self._call(address, _request(code, header), more_s=10.0)  # the broker waits for the member
            if answer.code == ResponseCode.SUCCESS:
                return answer
            problem = Refused(answer)
        assert problem is not None
        raise problem

    async def _ask_broker(self, broker_name: str, request: Command) -> Command:
        return await self._ask(self._address(broker_name, await self.brokers()), request)

    async def _ask(self, address: str, request: Command) -> Command:
        return await self._session.connections.to(address).ask(request, self._timeout_s)

    async def _call(self, address: str, request: Command, *, more_s: float = 0.0) -> Command:
        return await self._session.connections.to(address).call(request, self._timeout_s + more_s)


def _request(code: RequestCode, header: Header) -> Command:
    return Command(code=code, ext=headers.write(header))


def _read(answer: Command, body: type[B]) -> B:
    """Decode the body of an answer. Raises Refused for an error code, and CallError if the body cannot be decoded."""
    if answer.code != ResponseCode.SUCCESS:
        raise Refused(answer)
    try:
        return bodies.read(answer.body, body)
    except bodies.BodyError as error:
        raise CallError(f"the answer cannot be decoded: {error}") from None
