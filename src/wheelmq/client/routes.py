"""Routes from the name servers: the brokers and queues of each topic (RocketMQ: MQClientInstance, TopicRouteData)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from wheelmq.client.connections import Connections
from wheelmq.formats import names
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import PERM_READ, PERM_WRITE, BodyError, ClusterInfo, QueueName, Route
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused

B = TypeVar("B")

log = logging.getLogger(__name__)

_OF_NAME_SERVERS: Final = frozenset((RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO))
"""Requests that every name server supports and no broker does."""


class NoNameServer(CallError):
    """No name server answered. The text gives the error of each."""


class NoBroker(CallError):
    """No broker has the topic or can create it."""


class NotWritable(NoBroker):
    """No queue of the topic has the permission to write."""


class TopicUnknown(LookupError):
    """No name server knows the topic."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"the name server does not know topic {topic}; the first message to the topic creates it")
        self.topic = topic


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The queues of one topic, in the order that all clients of a group must use, and their brokers' addresses."""

    topic: str
    writable: tuple[QueueName, ...]
    readable: tuple[QueueName, ...]
    masters: dict[str, str]
    """Address of the master by broker name."""
    borrowed_queues: int = 0
    """If the topic does not exist yet, the number of queues that its first message creates; else 0."""


class RouteCache:
    """Routes by topic. A route is requested once; the client's keep-alive task refreshes it."""

    def __init__(self, servers: Sequence[str], connections: Connections, *, timeout_s: float = 3.0) -> None:
        self.servers = tuple(servers)
        self._connections = connections
        self._timeout_s = timeout_s
        self._current = 0
        self._known: dict[str, TopicRoute] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        self._addresses: dict[str, str] = {}
        """Last known address of each broker, from the route of any topic."""

    async def get(self, topic: str, *, new_topic_queues: int = 0) -> TopicRoute:
        """Return the route of `topic`. Raises TopicUnknown, NoNameServer, Refused.

        With `new_topic_queues` an unknown topic gets the route of TBW102, limited to that many queues, because a send
        creates the topic. Then NoBroker replaces TopicUnknown.
        """
        async with self._asking.setdefault(topic, asyncio.Lock()):
            known = self._known.get(topic)
            if known is not None and (new_topic_queues or not known.borrowed_queues):
                return known
            return await self._ask(topic, new_topic_queues)

    async def refresh(self, topic: str) -> bool:
        """Refresh the route of a topic in use. Returns False if no name server answers.

        After an error the old route stays: a restarting broker is absent from the name server for a while.
        """
        known = self._known.get(topic)
        try:
            await self._ask(topic, known.borrowed_queues if known is not None else 0)
        except (TopicUnknown, CallError, Refused) as error:
            log.info("the refresh of the route of %s failed: %s", topic, error)
            return not isinstance(error, NoNameServer)
        return True

    async def fetch(self, topic: str) -> TopicRoute:
        """Return the current route of `topic` from the name server. Raises TopicUnknown, NoNameServer, Refused."""
        return await self._ask(topic, 0)

    async def refresh_all(self) -> None:
        for topic in list(self._known):
            if not await self.refresh(topic):
                return

    def masters(self) -> dict[str, str]:
        return {name: self._addresses[name] for route in self._known.values() for name in route.masters}

    async def brokers(self) -> dict[str, str]:
        """Return the master address of every registered broker, by broker name. Raises NoNameServer, Refused."""
        return bodies.masters((await self._cluster()).broker_addr_table.values())

    async def masters_and_slaves(self) -> list[str]:
        """Return the addresses of all registered brokers, masters first. Raises NoNameServer, Refused."""
        brokers = (await self._cluster()).broker_addr_table.values()
        found = sorted((broker_id, address) for one in brokers for broker_id, address in one.broker_addrs.items())
        return [address for _, address in found]

    async def _cluster(self) -> ClusterInfo:
        answer = await self.ask_servers(Command(code=RequestCode.GET_BROKER_CLUSTER_INFO))
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer)
        return _read(answer, ClusterInfo)

    async def ask_servers(self, command: Command) -> Command:
        """Return the first answer of a name server. Raises NoNameServer."""
        problems = []
        for i in range(len(self.servers)):
            at = (self._current + i) % len(self.servers)
            try:
                answer = await self._connections.to(self.servers[at]).call(command, self._timeout_s)
            except CallError as error:
                problems.append(str(error))
                continue
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and command.code in _OF_NAME_SERVERS:
                problems.append(
                    f"{self.servers[at]} is not a name server: it does not serve request {command.code} "
                    f"({RequestCode(command.code).name}). This is probably the address of a broker; a name server "
                    "usually listens on port 9876"
                )
                continue
            self._current = at
            return answer
        raise NoNameServer("; ".join(problems) or "no name server is configured")

    async def _ask(self, topic: str, new_topic_queues: int) -> TopicRoute:
        found = await self._route(topic)
        if found is None and new_topic_queues:
            model = await self._route(names.AUTO_CREATE_TOPIC)
            if model is not None:
                for data in model.queue_datas:
                    data.write_queue_nums = data.read_queue_nums = min(new_topic_queues, data.write_queue_nums)
                return self._keep(topic, model, borrowed_queues=new_topic_queues)
            raise NoBroker(f"no broker is registered at {', '.join(self.servers)} that has topic {topic} or creates it")
        if found is None:
            raise TopicUnknown(topic)
        return self._keep(topic, found)

    async def _route(self, topic: str) -> Route | None:
        request = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic})
        answer = await self.ask_servers(request)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer)
        return _read(answer, Route)

    def _keep(self, topic: str, route: Route, *, borrowed_queues: int = 0) -> TopicRoute:
        masters = bodies.masters(route.broker_datas)
        writable = [
            QueueName(topic=topic, broker_name=data.broker_name, queue_id=queue_id)
            for data in route.queue_datas
            if data.perm & PERM_WRITE and data.broker_name in masters
            for queue_id in range(data.write_queue_nums)
        ]
        readable = [
            QueueName(topic=topic, broker_name=data.broker_name, queue_id=queue_id)
            for data in route.queue_datas
            if data.perm & PERM_READ and data.broker_name in masters
            for queue_id in range(data.read_queue_nums)
        ]
        made = TopicRoute(
            topic, tuple(sorted(writable, key=order)), tuple(sorted(readable, key=order)), masters, borrowed_queues
        )
        self._known[topic] = made
        self._addresses |= masters
        return made


def _read(answer: Command, body: type[B]) -> B:
    try:
        return bodies.read(answer.body, body)
    except BodyError as error:
        raise CallError(f"the answer of the name server cannot be decoded: {error}") from None


def order(queue: QueueName) -> tuple[str, str, int]:
    """Return the sort key of a queue that all clients of a group use (RocketMQ: MessageQueue.compareTo)."""
    return queue.topic, queue.broker_name, queue.queue_id
