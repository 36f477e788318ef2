"""The routing table, a pure structure that receives the time as an argument."""

from __future__ import annotations

import pytest

from wheelmq.formats.wire.bodies import DataVersion, TopicConfig
from wheelmq.nameserver.routes import LiveBroker, RouteTable


def broker(
    name: str = "b", broker_id: int = 0, address: str = "", at_ms: int = 0, connection: object = None, **fields: object
) -> LiveBroker:
    values: dict[str, object] = {
        "name": name,
        "cluster": "c",
        "broker_id": broker_id,
        "address": address or f"{name}:{broker_id}",
        "ha_address": f"ha-{name}:{broker_id}",
        "version": DataVersion(),
        "last_seen_ms": at_ms,
        "expiry_ms": 120_000,
        "connection": connection if connection is not None else object(),
        **fields,
    }
    return LiveBroker(**values)  # type: ignore[arg-type]


def topics(*names: str, perm: int = 6, queues: int = 4) -> dict[str, TopicConfig]:
    return {
        name: TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm) for name in names
    }


@pytest.fixture
def routes() -> RouteTable:
    return RouteTable()


def register(routes: RouteTable, one: LiveBroker, given: dict[str, TopicConfig] | None) -> str | None:
    return routes.register(one, given, acting_master=False)


def addresses(routes: RouteTable, topic: str = "T") -> dict[str, dict[int, str]] | None:
    route = routes.route(topic)
    return None if route is None else {data.broker_name: data.broker_addrs for data in route.broker_datas}


def test_an_empty_table_has_no_routes(routes: RouteTable) -> None:
    assert routes.route("T") is None
    assert routes.topics() == []
    assert routes.clusters().broker_addr_table == {}


def test_a_registration_adds_the_routes_of_its_topics(routes: RouteTable) -> None:
    assert register(routes, broker(), topics("T", "U")) is None
    route = routes.route("T")
    assert route is not None
    (queues,) = route.queue_datas
    assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums, queues.perm) == ("b", 4, 4, 6)
    (data,) = route.broker_datas
    assert (data.cluster, data.broker_addrs) == ("c", {0: "b:0"})
    assert routes.topics() == ["T", "U"]
    assert routes.route("V") is None


def test_two_brokers_share_a_topic(routes: RouteTable) -> None:
    register(routes, broker("b2"), topics("T"))
    register(routes, broker("b1"), topics("T", "U"))
    assert addresses(routes) == {"b1": {0: "b1:0"}, "b2": {0: "b2:0"}}
    assert addresses(routes, "U") == {"b1": {0: "b1:0"}}
    clusters = routes.clusters()
    assert sorted(clusters.cluster_addr_table["c"]) == ["b1", "b2"]


def test_only_the_master_registers_topics(routes: RouteTable) -> None:
    register(routes, broker(), topics("T"))
    assert register(routes, broker(broker_id=1), topics("U")) == "b:0"
    assert addresses(routes) == {"b": {0: "b:0", 1: "b:1"}}
    assert routes.topics() == ["T"]
    assert routes.ha_address_of("b:0") == "ha-b:0"


def test_a_replica_without_a_master_gets_no_address(routes: RouteTable) -> None:
    assert register(routes, broker(broker_id=1), None) is None


def test_a_broker_that_registers_one_topic_keeps_the_others(routes: RouteTable) -> None:
    register(routes, broker(version=DataVersion(counter=1)), topics("T", "U"))
    register(routes, broker(version=DataVersion(counter=2)), topics("U", "V", queues=9))  # as Apache: only changes
    assert routes.topics() == ["T", "U", "V"]
    assert [route.queue_datas[0].read_queue_nums for name in "TUV" if (route := routes.route(name))] == [4, 9, 9]


def test_topics_missing_from_a_registration_are_removed() -> None:
    routes = RouteTable(drops_missing=lambda: True)
    register(routes, broker("b1"), topics("T", "U"))
    register(routes, broker("b2"), topics("T"))
    register(routes, broker("b1"), topics("U"))
    assert addresses(routes) == {"b2": {0: "b2:0"}}
    register(routes, broker("b2"), topics())
    assert routes.topics() == ["U"]


class TestReplicas:
    """Masters and replicas of Apache. The replicas keep the routes when their master is gone."""

    def perms(self, routes: RouteTable) -> list[int]:
        route = routes.route("T")
        return [] if route is None else [queues.perm for queues in route.queue_datas]

    @pytest.mark.parametrize(("acting_master", "perms"), [(None, []), (False, [6]), (True, [4])])
    def test_a_replica_alone_becomes_the_acting_master(
        self, routes: RouteTable, acting_master: bool | None, perms: list[int]
    ) -> None:
        """The name server starts while the master is away. Brokers before 5.0 have no acting master."""
        routes.register(broker(broker_id=1), topics("T"), acting_master=acting_master)
        routes.register(broker(broker_id=2), topics("U"), acting_master=acting_master)
        assert self.perms(routes) == perms and routes.route("U") is None
        assert routes.register(broker(), topics("T"), acting_master=acting_master) is None
        assert self.perms(routes) == [6]

    @pytest.mark.parametrize(("acting_master", "perm"), [(None, 6), (False, 6), (True, 4)])
    def test_a_lost_master_leaves_its_replica(self, routes: RouteTable, acting_master: bool | None, perm: int) -> None:
        for broker_id in (0, 1):
            routes.register(broker(broker_id=broker_id), topics("T"), acting_master=acting_master)
        routes.unregister("b:0")
        assert self.perms(routes) == [perm] and addresses(routes) == {"b": {1: "b:1"}}
        routes.register(broker(), topics("T"), acting_master=acting_master)
        assert self.perms(routes) == [6]

    def test_a_replaced_master_does_not_get_its_place_back(self, routes: RouteTable) -> None:
        register(routes, broker(address="new", version=DataVersion(state_version=2)), topics("T"))
        register(routes, broker(address="old", version=DataVersion(state_version=1)), topics("T", "U"))
        assert addresses(routes) == {"b": {0: "new"}} and routes.version_of("old") is None
        register(routes, broker(address="newer", version=DataVersion(state_version=3)), topics("T"))
        assert addresses(routes) == {"b": {0: "newer"}}


def test_a_registration_without_topics_keeps_the_topics(routes: RouteTable) -> None:
    register(routes, broker(), topics("T"))
    register(routes, broker(), None)
    assert routes.topics() == ["T"]


def test_a_broker_may_change_its_id(routes: RouteTable) -> None:
    register(routes, broker(broker_id=1, address="x"), None)
    register(routes, broker(broker_id=0, address="x"), topics("T"))
    assert addresses(routes) == {"b": {0: "x"}}


def test_a_broker_may_change_its_address(routes: RouteTable) -> None:
    register(routes, broker(address="old"), topics("T"))
    register(routes, broker(address="new", at_ms=100_000), topics("T"))
    assert addresses(routes) == {"b": {0: "new"}}
    assert routes.expire(120_001) == ["old"]
    assert addresses(routes) == {"b": {0: "new"}}


def test_a_broker_may_change_its_name(routes: RouteTable) -> None:
    register(routes, broker("old", address="x"), topics("T"))
    register(routes, broker("new", address="x"), topics("T"))
    assert addresses(routes) == {"new": {0: "x"}}


def test_known_topics_change_only_with_the_version(routes: RouteTable) -> None:
    def perms() -> list[int]:
        return [data.perm for topic in ("T", "U") if (route := routes.route(topic)) for data in route.queue_datas]

    register(routes, broker(), topics("T"))
    register(routes, broker(), topics("T", "U", perm=4))
    assert perms() == [6, 4]  # an unknown topic is accepted with any version
    register(routes, broker(version=DataVersion(counter=1)), topics("T", "U", perm=4))
    assert perms() == [4, 4]
    register(routes, broker(address="new", version=DataVersion(counter=1)), topics("T", "U"))
    assert perms() == [6, 6]


class TestLeaving:
    def test_a_silent_broker_expires(self, routes: RouteTable) -> None:
        register(routes, broker("b1", at_ms=0), topics("T"))
        register(routes, broker("b2", at_ms=50_000), topics("T"))
        register(routes, broker("b3", at_ms=0, expiry_ms=10_000), topics("T"))
        assert routes.expire(10_000) == []
        assert routes.expire(10_001) == ["b3:0"]
        assert routes.expire(120_000) == []
        assert routes.expire(120_001) == ["b1:0"]
        assert addresses(routes) == {"b2": {0: "b2:0"}}

    def test_registrations_and_heartbeats_prevent_expiry(self, routes: RouteTable) -> None:
        register(routes, broker(at_ms=0), topics("T"))
        register(routes, broker(at_ms=100_000), topics("T"))
        assert routes.expire(200_000) == []
        routes.beat("b:0", 210_000)
        routes.beat("nobody", 210_000)
        assert routes.expire(330_000) == []
        assert routes.expire(330_001) == ["b:0"]
        assert routes.route("T") is None and routes.topics() == []

    def test_a_lost_connection_removes_its_broker(self, routes: RouteTable) -> None:
        connection = object()
        register(routes, broker("b1", connection=connection), topics("T"))
        register(routes, broker("b2"), topics("T"))
        assert routes.lose(object()) == []
        assert routes.lose(connection) == ["b1:0"]
        assert addresses(routes) == {"b2": {0: "b2:0"}}

    def test_the_loss_of_an_old_connection_changes_nothing(self, routes: RouteTable) -> None:
        old = object()
        register(routes, broker(connection=old), topics("T"))
        register(routes, broker(), topics("T"))
        assert routes.lose(old) == []
        assert addresses(routes) == {"b": {0: "b:0"}}

    def test_an_unregistered_broker_has_no_routes(self, routes: RouteTable) -> None:
        register(routes, broker(), topics("T"))
        register(routes, broker(broker_id=1), None)
        routes.unregister("b:0")
        assert addresses(routes) == {"b": {1: "b:1"}}
        routes.unregister("b:0")
        routes.unregister("b:1")
        assert addresses(routes) is None
        assert routes.clusters().cluster_addr_table == {}


class TestPermissions:
    def test_write_permission_is_wiped_and_restored(self, routes: RouteTable) -> None:
        register(routes, broker("b1"), topics("T", "U"))
        register(routes, broker("b2"), topics("T"))
        assert routes.set_write_permission("b1", allowed=False) == 2
        assert self.perms(routes) == {"b1": 4, "b2": 6}
        assert routes.set_write_permission("b1", allowed=True) == 2
        assert self.perms(routes) == {"b1": 6, "b2": 6}
        assert routes.set_write_permission("nobody", allowed=False) == 0

    @staticmethod
    def perms(routes: RouteTable) -> dict[str, int]:
        route = routes.route("T")
        assert route is not None
        return {queues.broker_name: queues.perm for queues in route.queue_datas}


def test_a_deleted_topic_has_no_route(routes: RouteTable) -> None:
    register(routes, broker("b1"), topics("T"))
    register(routes, broker("b2", cluster="d"), topics("T"))
    routes.delete_topic("T", "d")
    assert addresses(routes) == {"b1": {0: "b1:0"}}
    routes.delete_topic("nowhere", None)
    routes.delete_topic("T", None)
    assert routes.route("T") is None


class TestTwins:
    """Two live brokers with one name and one id."""

    def test_the_last_registration_takes_the_place(self, routes: RouteTable) -> None:
        for address in ("a:1", "b:1", "a:1"):
            register(routes, broker(address=address), topics("T"))
            assert addresses(routes) == {"b": {0: address}}
        assert routes.replaced == "b:1"

    def test_a_broker_that_registers_again_replaces_no_other(self, routes: RouteTable) -> None:
        for _ in range(2):
            register(routes, broker(address="a:1"), topics("T"))
            assert routes.replaced is None
        routes.unregister("a:1")
        register(routes, broker(address="b:1"), topics("T"))
        assert routes.replaced is None, "a broker that has moved is no twin"

    def test_the_loss_of_the_last_twin_gives_the_place_to_the_other(self, routes: RouteTable) -> None:
        own, strange = object(), object()
        register(routes, broker(address="a:1", connection=own), topics("T", queues=4))
        register(routes, broker(address="x:666", connection=strange), topics("T", "X", queues=1))
        assert routes.lose(strange) == ["x:666"]
        assert addresses(routes) == {"b": {0: "a:1"}}
        register(routes, broker(address="a:1", connection=own), topics("T", queues=4))
        route = routes.route("T")
        assert route is not None and route.queue_datas[0].read_queue_nums == 4, "its own topics are taken again"
        assert routes.replaced is None
        assert routes.lose(own) == ["a:1"] and routes.topics() == []

    def test_the_loss_of_a_replaced_twin_changes_nothing(self, routes: RouteTable) -> None:
        own, strange = object(), object()
        register(routes, broker(address="x:666", connection=strange), topics("T"))
        register(routes, broker(address="a:1", connection=own), topics("T"))
        assert routes.lose(strange) == ["x:666"]
        assert addresses(routes) == {"b": {0: "a:1"}}

    def test_a_twin_that_takes_the_place_back_has_its_own_topics(self, routes: RouteTable) -> None:
        for address, queues in (("a:1", 4), ("b:1", 1), ("a:1", 4)):
            register(routes, broker(address=address), topics("T", queues=queues))
        route = routes.route("T")
        assert route is not None and route.queue_datas[0].read_queue_nums == 4

    def test_a_promoted_slave_is_no_twin_of_its_former_master(self, routes: RouteTable) -> None:
        register(routes, broker(address="a:1"), topics("T"))
        register(routes, broker(broker_id=1, address="b:1"), topics("T"))
        register(routes, broker(address="b:1"), topics("T"))
        assert addresses(routes) == {"b": {0: "b:1"}} and routes.replaced is None

    def test_a_replica_never_takes_the_place_of_a_master(self, routes: RouteTable) -> None:
        own = object()
        register(routes, broker(connection=own), topics("T"))
        register(routes, broker(broker_id=1), topics("T"))
        routes.lose(own)
        assert addresses(routes) == {"b": {1: "b:1"}}
