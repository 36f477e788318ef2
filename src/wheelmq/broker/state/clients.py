"""Connected producers and consumers by group, from their heartbeats (RocketMQ: ConsumerManager)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from wheelmq.broker.connection import Connection
from wheelmq.broker.state.heartbeats import Membership, UnfinishedHeartbeats
from wheelmq.formats.wire.bodies import ConsumerData, Subscription


@dataclass(slots=True)
class Client:
    client_id: str
    connection: Connection
    language: str
    version: int
    last_seen_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    clients: dict[tuple[str, int], Client] = field(default_factory=dict)

    def client_ids(self) -> list[str]:
        return sorted({client.client_id for client in self.clients.values()})

    def find(self, client_id: str) -> Client | None:
        return next((one for one in reversed(self.clients.values()) if one.client_id == client_id), None)


class Clients:
    """Members of consumer and producer groups, by client id and connection: a client may have several connections."""

    def __init__(self) -> None:
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[tuple[str, int], Client]] = {}
        self._groups_produced_for: dict[str, dict[int, tuple[Connection, set[str]]]] = {}
        """Keys are client id and connection."""
        self._memberships: dict[int, dict[Membership, None]] = {}
        """Keys are connections. When many connections close at once, each looks only at its own memberships."""
        self.unfinished = UnfinishedHeartbeats()

    def consumer_beat(self, client: Client, data: ConsumerData) -> bool:
        """Take a consumer's heartbeat. Returns whether the group's members or subscriptions changed."""
        group = self.consumers.get(data.group_name)
        if group is None:
            group = self.consumers[data.group_name] = ConsumerGroup(data.group_name)
        group.consume_type = str(data.consume_type)
        group.message_model = str(data.message_model)
        group.consume_from_where = str(data.consume_from_where)
        key = (client.client_id, id(client.connection))
        joined = key not in group.clients
        group.clients[key] = client
        self._memberships.setdefault(id(client.connection), {})[Membership(True, data.group_name, client.client_id)] = (
            None
        )
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
        self._memberships.setdefault(id(client.connection), {})[Membership(False, group, client.client_id)] = None
        mine = self._groups_produced_for.setdefault(client.client_id, {})
        mine.setdefault(id(client.connection), (client.connection, set()))[1].add(group)

    def find_producer(self, client_id: str) -> Connection | None:
        found = self._groups_produced_for.get(client_id)
        return next(reversed(found.values()))[0] if found else None

    def available_producer(
        self, group: str, turn: int, may_see: Callable[[Connection], bool] = lambda connection: True
    ) -> Connection | None:
        """Return the connection of a producer of `group`, each in turn, preferably one that is not full.

        A connection that may not see the message is left out.
        """
        members = self.producers.get(group, {}).values()
        found = {id(one.connection): one.connection for one in members}.values()
        connections = [one for one in found if one.is_open and may_see(one)]
        turned = [connections[(turn + i) % len(connections)] for i in range(len(connections))]
        return next((one for one in turned if not one.is_full), turned[0] if turned else None)

    def leave(self, client_id: str, connection: Connection, *, producer: str | None, consumer: str | None) -> list[str]:
        """Remove a client from groups. Returns the consumer groups that lost a member."""
        key = (client_id, id(connection))
        for is_consumer, group in ((True, consumer), (False, producer)):
            if group is not None:
                self.unfinished.overtake(connection, [Membership(is_consumer, group, client_id)])
        if producer is not None:
            self._drop_producer(producer, key)
        if consumer is not None and consumer in self.consumers and key in self.consumers[consumer].clients:
            self._drop_consumer(consumer, key)
            return [consumer]
        return []

    def lose(self, connection: Connection) -> list[str]:
        """Remove a connection that is gone. Returns the consumer groups that lost a member."""
        lost: dict[str, None] = {}
        self.unfinished.drop(connection)
        for is_consumer, group, client_id in list(self._memberships.get(id(connection), ())):
            key = (client_id, id(connection))
            if is_consumer:
                self._drop_consumer(group, key)
                lost[group] = None
            else:
                self._drop_producer(group, key)
        return list(lost)

    def expire(self, before_ms: int) -> tuple[list[Connection], list[str]]:
        """Remove the connections with a client without a heartbeat since `before_ms`, and all memberships of them.

        Returns these connections, which must be closed, and the consumer groups that lost a member.
        """
        stale = [
            client.connection
            for members in (*(group.clients for group in self.consumers.values()), *self.producers.values())
            for client in members.values()
            if client.last_seen_ms < before_ms
        ]
        connections = list({id(connection): connection for connection in stale}.values())
        lost = (name for connection in connections for name in self.lose(connection))
        return connections, list(dict.fromkeys(lost))

    def _drop_consumer(self, name: str, key: tuple[str, int]) -> None:
        group = self.consumers[name]
        del group.clients[key]
        self._forget(True, name, key)
        if not group.clients:
            del self.consumers[name]

    def _drop_producer(self, name: str, key: tuple[str, int]) -> None:
        members = self.producers.get(name, {})
        if members.pop(key, None) is None:
            return
        self._forget(False, name, key)
        if not members:
            del self.producers[name]
        client_id, connection = key
        mine = self._groups_produced_for[client_id]
        mine[connection][1].discard(name)
        if not mine[connection][1]:
            del mine[connection]
        if not mine:
            del self._groups_produced_for[client_id]

    def _forget(self, is_consumer: bool, name: str, key: tuple[str, int]) -> None:
        client_id, connection = key
        mine = self._memberships[connection]
        del mine[Membership(is_consumer, name, client_id)]
        if not mine:
            del self._memberships[connection]
