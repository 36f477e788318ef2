"""The routing table (RocketMQ: RouteInfoManager), without sockets and clock. Times are monotonic milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from wheelmq.formats.wire.bodies import (
    PERM_WRITE,
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    Route,
    TopicConfig,
)

EXPIRY_MS = 120_000
MASTER_ID = 0


@dataclass(slots=True)
class LiveBroker:
    name: str
    cluster: str
    broker_id: int
    address: str
    ha_address: str
    version: DataVersion
    last_seen_ms: int
    expiry_ms: int
    connection: object


@dataclass(slots=True)
class _Group:
    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    acting_master: bool = False


class RouteTable:
    """Brokers by name and address, and topics by broker name.

    `drops_missing` returns whether a registration removes the broker's topics that it does not name.
    """

    def __init__(self, drops_missing: Callable[[], bool] = lambda: False) -> None:
        self._drops_missing = drops_missing
        self._groups: dict[str, _Group] = {}
        self._live: dict[str, LiveBroker] = {}
        self._queues: dict[str, dict[str, QueueData]] = {}
        self.replaced: str | None = None
        """Address of the live broker whose place the last registration took, or None. A promoted slave is no case."""

    def register(
        self, broker: LiveBroker, topics: dict[str, TopicConfig] | None, *, acting_master: bool | None
    ) -> str | None:
        """Register a broker process. Return the master's address for a replica, and None for a master.

        The queues of a known topic stay unchanged while the broker's data version and address do. A registration may
        name only some topics, as Apache's brokers do when one changes; `topics` None names none.

        Topics come only from the master or, without one, from the replica with the lowest id, without write permission.
        Older brokers omit `acting_master`; then no topics come from a replica. If another process became master later,
        the registration of the earlier master is ignored.
        """
        self.replaced = None
        known = self._live.get(broker.address)
        if known is not None and known.name != broker.name:
            self.unregister(broker.address)
            known = None
        group = self._groups.setdefault(broker.name, _Group(broker.cluster))
        former_ids = [i for i, one in group.addresses.items() if one == broker.address and i != broker.broker_id]
        for broker_id in former_ids:
            del group.addresses[broker_id]  # the process has changed its id
        if self._is_superseded(broker, group):
            self._live.pop(broker.address, None)
            return None
        before = group.addresses.get(broker.broker_id)
        is_new = known is None or known.version != broker.version or before != broker.address
        if before != broker.address and before in self._live and not former_ids:
            self.replaced = before
        group.cluster = broker.cluster
        group.acting_master = bool(acting_master)
        group.addresses[broker.broker_id] = broker.address
        self._live[broker.address] = broker
        is_master = broker.broker_id == MASTER_ID
        stands_in = acting_master is not None and broker.broker_id == min(group.addresses)
        if topics is not None and (is_master or stands_in):
            masked = 0 if is_master or not acting_master else PERM_WRITE
            self._take_topics(broker.name, topics, is_new=is_new, masked=masked)
        return None if is_master else group.addresses.get(MASTER_ID)

    def _is_superseded(self, broker: LiveBroker, group: _Group) -> bool:
        """Return whether another process with the same id has a later state, because it became master later."""
        other = self._live.get(group.addresses.get(broker.broker_id, broker.address))
        return (
            other is not None
            and other.address != broker.address
            and other.version.state_version > broker.version.state_version
        )

    def _take_topics(self, broker_name: str, topics: dict[str, TopicConfig], *, is_new: bool, masked: int) -> None:
        if self._drops_missing():
            for topic in self._topics_of(broker_name) - topics.keys():
                self._drop_queues(topic, broker_name)
        for name, config in topics.items():
            queues = self._queues.setdefault(name, {})
            if broker_name in queues and not is_new:
                continue
            queues[broker_name] = QueueData(
                broker_name=broker_name,
                read_queue_nums=config.read_queue_nums,
                write_queue_nums=config.write_queue_nums,
                perm=config.perm & ~masked,
                topic_sys_flag=config.topic_sys_flag,
            )

    def beat(self, address: str, now_ms: int) -> None:
        if address in self._live:
            self._live[address].last_seen_ms = now_ms

    def ha_address_of(self, address: str) -> str | None:
        live = self._live.get(address)
        return live.ha_address if live else None

    def unregister(self, address: str) -> None:
        """Remove a broker process, and the topics that only it served.

        Another live broker with the same name and id gets its place in the routes back.
        """
        live = self._live.pop(address, None)
        if live is None:
            return
        group = self._groups.get(live.name)
        if group is None:
            return
        group.addresses = {i: known for i, known in group.addresses.items() if known != address}
        self._restore(live, group)
        if group.addresses:
            if group.acting_master and MASTER_ID not in group.addresses:
                self.set_write_permission(live.name, allowed=False)
            return
        del self._groups[live.name]
        for topic in self._topics_of(live.name):
            self._drop_queues(topic, live.name)

    def _restore(self, gone: LiveBroker, group: _Group) -> None:
        """Give the place of a removed broker to the live broker that had it before, if there is one."""
        if gone.broker_id in group.addresses:
            return
        others = [live for live in self._live.values() if (live.name, live.broker_id) == (gone.name, gone.broker_id)]
        if others:
            live = max(others, key=lambda live: live.last_seen_ms)
            group.addresses[live.broker_id] = live.address
            live.version = replace(
                live.version, counter=-1
            )  # its next registration replaces the topics of the removed broker

    def expire(self, now_ms: int) -> list[str]:
        late = [a for a, live in self._live.items() if now_ms - live.last_seen_ms > live.expiry_ms]
        for address in late:
            self.unregister(address)
        return late

    def lose(self, connection: object) -> list[str]:
        lost = [a for a, live in self._live.items() if live.connection is connection]
        for address in lost:
            self.unregister(address)
        return lost

    def route(self, topic: str) -> Route | None:
        queues = self._queues.get(topic, {})
        served = {name: data for name, data in queues.items() if name in self._groups}
        if not served:
            return None
        return Route(
            broker_datas=[self._broker_data(name) for name in sorted(served)],
            queue_datas=[served[name] for name in sorted(served)],
        )

    def _broker_data(self, name: str) -> BrokerData:
        group = self._groups[name]
        return BrokerData(
            broker_name=name,
            cluster=group.cluster,
            broker_addrs=dict(sorted(group.addresses.items())),
            enable_acting_master=group.acting_master,
        )

    def clusters(self) -> ClusterInfo:
        """Return all brokers, and the broker names of each cluster."""
        by_cluster: dict[str, list[str]] = {}
        for name, group in self._groups.items():
            by_cluster.setdefault(group.cluster, []).append(name)
        return ClusterInfo(
            broker_addr_table={name: self._broker_data(name) for name in self._groups}, cluster_addr_table=by_cluster
        )

    def topics(self) -> list[str]:
        return sorted(self._queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        names = {name for name, group in self._groups.items() if group.cluster == cluster}
        return sorted(topic for topic, queues in self._queues.items() if names & queues.keys())

    def topics_with_flag(self, wanted: Callable[[int], bool]) -> list[str]:
        first = {topic: next(iter(queues.values())) for topic, queues in self._queues.items()}
        return sorted(topic for topic, data in first.items() if wanted(data.topic_sys_flag))

    def add_topic(self, topic: str, queues: list[QueueData]) -> bool:
        """Add queues of a topic. Return False, without a change, if a queue belongs to no known broker."""
        if not queues or any(data.broker_name not in self._groups for data in queues):
            return False
        self._queues.setdefault(topic, {}).update({data.broker_name: data for data in queues})
        return True

    def version_of(self, address: str) -> DataVersion | None:
        live = self._live.get(address)
        return live.version if live else None

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Delete a topic on the brokers of one cluster, or on all brokers."""
        for name in list(self._queues.get(topic, {})):
            if cluster is None or (name in self._groups and self._groups[name].cluster == cluster):
                self._drop_queues(topic, name)

    def set_write_permission(self, broker_name: str, *, allowed: bool) -> int:
        """Grant or remove the write permission of a broker's topics. Return the number of topics."""
        count = 0
        for queues in self._queues.values():
            data = queues.get(broker_name)
            if data is None:
                continue
            data.perm = data.perm | PERM_WRITE if allowed else data.perm & ~PERM_WRITE
            count += 1
        return count

    def _topics_of(self, broker_name: str) -> set[str]:
        return {topic for topic, queues in self._queues.items() if broker_name in queues}

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        queues = self._queues[topic]
        queues.pop(broker_name, None)
        if not queues:
            del self._queues[topic]
