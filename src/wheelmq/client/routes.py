"""Which broker has which queues of a topic, as the name servers tell (RocketMQ: MQClientInstance, TopicRouteData)."""

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
"""Requests that every name server serves, and no broker."""


class NoNameServer(CallError):
    """No name server answered; the text says what each one did."""


class NoBroker(CallError):
    """No broker is there that has the topic or could make it."""


class TopicUnknown(LookupError):
    """No name server knows the topic."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic} is not known to the name server; it is made by the first message sent to it")
        self.topic = topic


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The queues of one topic, sorted as every client of a group must sort them, and where their brokers are."""

    topic: str
    writable: tuple[QueueName, ...]
    readable: tuple[QueueName, ...]
    masters: dict[str, str]
    """Address of the master by broker name."""
    borrowed_queues: int = 0
    """Not 0: the topic does not exist yet, and these are the queues it will have once a message is sent to it."""


class RouteCache:
    """Routes by topic, asked for once and refreshed by whoever keeps the client alive."""

    def __init__(self, servers: Sequence[str], connections: Connections, *, timeout_s: float = 3.0) -> None:
        self.servers = tuple(servers)
        self._connections = connections
        self._timeout_s = timeout_s
        self._current = 0
        self._known: dict[str, TopicRoute] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        self._addresses: dict[str, str] = {}
        """Where each broker was last heard to be, whichever topic that was for."""

    async def get(self, topic: str, *, new_topic_queues: int = 0) -> TopicRoute:
        """The route of `topic`. Raises TopicUnknown, NoNameServer, Refused.

        With `new_topic_queues` an unknown topic gets the route of TBW102, cut to that many queues: a send makes it.
        Then NoBroker takes the place of TopicUnknown.
        """
        async with self._asking.setdefault(topic, asyncio.Lock()):
            known = self._known.get(topic)
            if known is not None and (new_topic_queues or not known.borrowed_queues):
                return known
            return await self._ask(topic, new_topic_queues)

    async def refresh(self, topic: str) -> bool:
        """Ask for the route of a topic in use again; False when no name server answers.

        What is known stays when nothing better is heard: a broker that restarts is away from the name server for a
        while, and comes back to its address.
        """
        known = self._known.get(topic)
        try:
            await self._ask(topic, known.borrowed_queues if known is not None else 0)
        except (TopicUnknown, CallError, Refused) as error:
            log.info("the route of %s was not refreshed: %s", topic, error)
            return not isinstance(error, NoNameServer)
        return True

    async def fetch(self, topic: str) -> TopicRoute:
        """The route of `topic` as the name server has it now. Raises TopicUnknown, NoNameServer, Refused."""
        return await self._ask(topic, 0)

    async def refresh_all(self) -> None:
        """Refresh the route of every topic in use, until no name server answers."""
        for topic in list(self._known):
            if not await self.refresh(topic):
                return

    def masters(self) -> dict[str, str]:
        """Every broker of a topic in use, by name, where it was last heard to be."""
        return {name: self._addresses[name] for route in self._known.values() for name in route.masters}

    async def brokers(self) -> dict[str, str]:
        """Every broker that is registered, by name, whatever topics it has. Raises NoNameServer, Refused."""
        answer = await self.ask_servers(Command(code=RequestCode.GET_BROKER_CLUSTER_INFO))
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer)
        return bodies.masters(_read(answer, ClusterInfo).broker_addr_table.values())

    async def ask_servers(self, command: Command) -> Command:
        """The answer of the first name server that gives one. Raises NoNameServer."""
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
                    f"({RequestCode(command.code).name}). A broker's address was probably given; a name server "
                    f"usually listens on port 9876"
                )
                continue
            self._current = at
            return answer
        raise NoNameServer("; ".join(problems) or "no name server is named")

    async def _ask(self, topic: str, new_topic_queues: int) -> TopicRoute:
        found = await self._route(topic)
        if found is None and new_topic_queues:
            model = await self._route(names.AUTO_CREATE_TOPIC)
            if model is not None:
                for data in model.queue_datas:
                    data.write_queue_nums = data.read_queue_nums = min(new_topic_queues, data.write_queue_nums)
                return self._keep(topic, model, borrowed_queues=new_topic_queues)
            raise NoBroker(f"no broker is registered at {', '.join(self.servers)} that has topic {topic} or makes it")
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
    """Raises CallError for a body that does not read."""
    try:
        return bodies.read(answer.body, body)
    except BodyError as error:
        raise CallError(f"what the name server answers does not read: {error}") from None


def order(queue: QueueName) -> tuple[str, str, int]:
    """The order of queues on which every client of a group agrees (RocketMQ: MessageQueue.compareTo)."""
    return queue.topic, queue.broker_name, queue.queue_id
