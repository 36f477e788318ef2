"""Who is connected: producers and consumers by group, as their heartbeats tell (RocketMQ: ConsumerManager)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from wheelmq.broker.connection import Connection
from wheelmq.formats.wire.bodies import ConsumerData, Subscription


@dataclass(slots=True)
class Client:
    """A client of a group, on one connection."""

    client_id: str
    connection: Connection
    language: str
    version: int
    last_seen_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """The members of a group and what they subscribe to."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    clients: dict[tuple[str, int], Client] = field(default_factory=dict)

    def client_ids(self) -> list[str]:
        return sorted({client.client_id for client in self.clients.values()})

    def find(self, client_id: str) -> Client | None:
        """The client of an id; of several connections with one id the last."""
        return next((one for one in reversed(self.clients.values()) if one.client_id == client_id), None)


class Clients:
    """Members of consumer and producer groups. A key is client id and connection, so a client may come twice."""

    def __init__(self) -> None:
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[tuple[str, int], Client]] = {}
        self._groups_produced_for: dict[str, dict[int, tuple[Connection, set[str]]]] = {}
        """By client id and connection."""

    def consumer_beat(self, client: Client, data: ConsumerData) -> bool:
        """Take a consumer's heartbeat; whether the group's members or subscriptions changed by it."""
        group = self.consumers.get(data.group_name)
        if group is None:
            group = self.consumers[data.group_name] = ConsumerGroup(data.group_name)
        group.consume_type = str(data.consume_type)
        group.message_model = str(data.message_model)
        group.consume_from_where = str(data.consume_from_where)
        key = (client.client_id, id(client.connection))
        joined = key not in group.clients
        group.clients[key] = client
        return self._subscribe(group, data.subscription_data_set) or joined

    @staticmethod
    def _subscribe(group: ConsumerGroup, wanted: list[Subscription]) -> bool:
        changed = False
        for subscription in wanted:
            known = group.subscriptions.get(subscription.topic)
            if known is None or subscription.sub_version > known.sub_version:
                changed |= known is None or known.sub_string != subscription.sub_string
                group.subscriptions[subscription.topic] = subscription
        topics = {subscription.topic for subscription in wanted}
        for topic in [topic for topic in group.subscriptions if topic not in topics]:
            del group.subscriptions[topic]
            changed = True
        return changed

    def producer_beat(self, client: Client, group: str) -> None:
        self.producers.setdefault(group, {})[client.client_id, id(client.connection)] = client
        mine = self._groups_produced_for.setdefault(client.client_id, {})
        mine.setdefault(id(client.connection), (client.connection, set()))[1].add(group)

    def find_producer(self, client_id: str) -> Connection | None:
        """The connection that a producer of this id beats on; of several the last."""
        found = self._groups_produced_for.get(client_id)
        return next(reversed(found.values()))[0] if found else None

    def available_producer(self, group: str, turn: int) -> Connection | None:
        """A connection of a producer of `group`, each in its turn, one that takes something now if there is one."""
        members = self.producers.get(group, {}).values()
        connections = [one for one in {id(c.connection): c.connection for c in members}.values() if one.is_open]
        turned = [connections[(turn + i) % len(connections)] for i in range(len(connections))]
        return next((one for one in turned if not one.is_full), turned[0] if turned else None)

    def leave(self, client_id: str, connection: Connection, *, producer: str | None, consumer: str | None) -> list[str]:
        """A client leaves groups; the consumer groups that lost a member."""
        key = (client_id, id(connection))
        if producer is not None:
            self._drop_producer(producer, key)
        if consumer is not None and consumer in self.consumers and key in self.consumers[consumer].clients:
            self._drop_consumer(consumer, key)
            return [consumer]
        return []

    def lose(self, connection: Connection) -> list[str]:
        """A connection is gone; the consumer groups that lost a member."""
        return self._drop_where(lambda client: client.connection is connection)

    def expire(self, before_ms: int) -> tuple[list[Connection], list[str]]:
        """Connections with a client not heard of since `before_ms`, and the consumer groups that lost a member.

        All memberships of such a connection are dropped: it is to be closed.
        """
        stale = [
            client.connection
            for members in (*(group.clients for group in self.consumers.values()), *self.producers.values())
            for client in members.values()
            if client.last_seen_ms < before_ms
        ]
        connections = {id(connection): connection for connection in stale}
        return list(connections.values()), self._drop_where(lambda client: id(client.connection) in connections)

    def _drop_where(self, gone: Callable[[Client], bool]) -> list[str]:
        lost = []
        for name, group in list(self.consumers.items()):
            for key in [key for key, client in group.clients.items() if gone(client)]:
                self._drop_consumer(name, key)
                lost.append(name)
        for name, members in list(self.producers.items()):
            for key in [key for key, client in members.items() if gone(client)]:
                self._drop_producer(name, key)
        return list(dict.fromkeys(lost))

    def _drop_consumer(self, name: str, key: tuple[str, int]) -> None:
        group = self.consumers[name]
        del group.clients[key]
        if not group.clients:
            del self.consumers[name]

    def _drop_producer(self, name: str, key: tuple[str, int]) -> None:
        members = self.producers.get(name, {})
        if members.pop(key, None) is None:
            return
        if not members:
            del self.producers[name]
        client_id, connection = key
        mine = self._groups_produced_for[client_id]
        mine[connection][1].discard(name)
        if not mine[connection][1]:
            del mine[connection]
        if not mine:
            del self._groups_produced_for[client_id]
