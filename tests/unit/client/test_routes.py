"""Routes from fake name servers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from wheelmq.client.connections import Connections
from wheelmq.client.routes import NoBroker, NoNameServer, RouteCache, TopicUnknown
from wheelmq.client.session import server_list
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused

MODEL = bodies.Route(
    broker_datas=[
        bodies.BrokerData(broker_name="b2", cluster="c", broker_addrs={0: "h:2", 1: "h:9"}),
        bodies.BrokerData(broker_name="b1", cluster="c", broker_addrs={0: "h:1"}),
        bodies.BrokerData(broker_name="orphan", cluster="c", broker_addrs={1: "h:3"}),
    ],
    queue_datas=[
        bodies.QueueData(broker_name="b2", read_queue_nums=8, write_queue_nums=8, perm=7),
        bodies.QueueData(broker_name="b1", read_queue_nums=1, write_queue_nums=2, perm=6),
        bodies.QueueData(broker_name="orphan", read_queue_nums=4, write_queue_nums=4, perm=6),
    ],
)


class FakeNameServer:
    """A name server that answers from a table. It is down if its table is None."""

    def __init__(self, table: dict[str, bodies.Route] | None) -> None:
        self.table = table
        self.asked: list[str] = []
        self.calls = 0

    async def call(self, command: Command, timeout_s: float) -> Command:
        self.calls += 1
        if self.table is None:
            raise CallError("down")
        assert command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        topic = command.ext["topic"]
        self.asked.append(topic)
        if topic == "of a broker":
            return Command(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        if topic == "forbidden":
            return Command(code=ResponseCode.NO_PERMISSION)
        if topic not in self.table:
            return Command(code=ResponseCode.TOPIC_NOT_EXIST)
        return Command(code=ResponseCode.SUCCESS, body=bodies.write(self.table[topic]))


class FakeConnections(Connections):
    def __init__(self, servers: dict[str, FakeNameServer]) -> None:
        super().__init__()
        self.servers = servers

    def to(self, address: str) -> Any:
        return self.servers[address]


def routes(**servers: FakeNameServer) -> RouteCache:
    return RouteCache(tuple(servers), FakeConnections(servers))


def test_a_route_has_the_sorted_queues_of_brokers_with_a_master() -> None:
    route = asyncio.run(routes(n=FakeNameServer({"T": MODEL})).get("T"))
    assert [(queue.broker_name, queue.queue_id) for queue in route.writable] == [
        *[("b1", i) for i in range(2)],
        *[("b2", i) for i in range(8)],
    ]
    assert [(queue.broker_name, queue.queue_id) for queue in route.readable][:2] == [("b1", 0), ("b2", 0)]
    assert route.masters == {"b1": "h:1", "b2": "h:2"}


def test_a_route_leaves_out_queues_without_permission() -> None:
    data = [
        bodies.QueueData(broker_name="b1", read_queue_nums=1, write_queue_nums=1, perm=4),
        bodies.QueueData(broker_name="b2", read_queue_nums=1, write_queue_nums=1, perm=2),
    ]
    limited = bodies.Route(broker_datas=MODEL.broker_datas, queue_datas=data)
    route = asyncio.run(routes(n=FakeNameServer({"T": limited})).get("T"))
    assert [queue.broker_name for queue in route.readable] == ["b1"]
    assert [queue.broker_name for queue in route.writable] == ["b2"]


def test_a_new_topic_borrows_the_queues_of_tbw102_until_it_exists() -> None:
    async def scenario() -> None:
        server = FakeNameServer({"TBW102": MODEL})
        found = routes(n=server)
        with pytest.raises(TopicUnknown):
            await found.get("T")
        route = await found.get("T", new_topic_queues=4)
        assert [queue.queue_id for queue in route.writable if queue.broker_name == "b2"] == [0, 1, 2, 3]
        assert {queue.topic for queue in route.writable} == {"T"}
        with pytest.raises(TopicUnknown):
            await found.get("T")  # a consumer needs the real topic
        await found.refresh_all()
        assert (await found.get("T", new_topic_queues=4)).borrowed_queues == 4
        assert server.table is not None
        server.table["T"] = MODEL
        await found.refresh_all()
        assert (await found.get("T")).borrowed_queues == 0

    asyncio.run(scenario())


def test_concurrent_callers_share_one_route_request() -> None:
    async def scenario() -> None:
        server = FakeNameServer({"T": MODEL})
        found = routes(n=server)
        await asyncio.gather(*(found.get("T") for _ in range(5)))
        assert server.asked == ["T"]

    asyncio.run(scenario())


def test_the_next_name_server_is_asked_when_one_is_down() -> None:
    async def scenario() -> None:
        up = FakeNameServer({"T": MODEL})
        found = routes(dead=FakeNameServer(None), up=up)
        await found.get("T")
        await found.refresh("T")
        up.table = None
        await found.refresh("T")  # no name server answers: the known route stays
        assert (await found.get("T")).masters
        with pytest.raises(NoNameServer, match="down; down"):
            await found.get("other")

    asyncio.run(scenario())


def test_a_route_is_kept_while_its_broker_is_missing() -> None:
    async def scenario() -> None:
        server = FakeNameServer({"T": MODEL})
        found = routes(n=server)
        await found.get("T")
        server.table = {}
        await found.refresh_all()
        assert (await found.get("T")).masters == {"b1": "h:1", "b2": "h:2"}

    asyncio.run(scenario())


def test_the_newest_route_gives_the_address_of_a_broker() -> None:
    """The old route of a deleted topic keeps its old address. That address must not be used."""

    async def scenario() -> None:
        server = FakeNameServer({"T": MODEL, "deleted": MODEL})
        found = routes(n=server)
        await found.get("T")
        await found.get("deleted")
        there = [bodies.BrokerData(broker_name="b1", cluster="c", broker_addrs={0: "h:7"})]
        server.table = {"T": bodies.Route(broker_datas=there, queue_datas=MODEL.queue_datas)}
        await found.refresh_all()
        assert found.masters() == {"b1": "h:7", "b2": "h:2"}

    asyncio.run(scenario())


def test_a_refresh_stops_when_no_name_server_answers() -> None:
    """Otherwise each topic would wait for one timeout per name server."""

    async def scenario() -> None:
        server = FakeNameServer({f"T{i}": MODEL for i in range(9)})
        found = routes(n=server)
        for i in range(9):
            await found.get(f"T{i}")
        server.table, server.calls = None, 0
        await found.refresh_all()
        assert server.calls == 1

    asyncio.run(scenario())


def test_a_missing_broker_and_a_rejection_raise_errors() -> None:
    async def scenario() -> None:
        found = routes(n=FakeNameServer({}))
        with pytest.raises(NoBroker, match="no broker is registered"):
            await found.get("T", new_topic_queues=4)
        with pytest.raises(Refused):
            await found.get("forbidden")

    asyncio.run(scenario())


def test_a_server_list_is_parsed() -> None:
    assert server_list("a:1; b:2,c:3") == ("a:1", "b:2", "c:3")
    assert server_list(["a:1"]) == ("a:1",)
    for text in ("", ";", "9876", "a b", "-", "a:", "a:x", "a:0", "a:70000", ":9876"):
        with pytest.raises(ValueError, match="name server"):
            server_list(text)


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("localhost", "localhost:9876"),
        ("names.example.com", "names.example.com:9876"),
        ("10.0.0.7", "10.0.0.7:9876"),
        ("::1", "[::1]:9876"),
        ("[::1]", "[::1]:9876"),
        ("[::1]:1", "[::1]:1"),
        ("localhost:1", "localhost:1"),
    ],
)
def test_a_server_without_a_port_gets_the_usual_port(text: str, server: str) -> None:
    assert server_list(text) == server_list([text]) == (server,)


def test_the_error_names_a_server_that_is_no_name_server() -> None:
    with pytest.raises(NoNameServer, match=r"^n is not a name server: it does not serve request 105 \(GET_ROUTEINFO"):
        asyncio.run(routes(n=FakeNameServer({})).get("of a broker"))
