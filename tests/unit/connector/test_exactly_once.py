"""The sink with guarantee exactly-once against live brokers, without Spark: uploads of tasks, commits of the driver."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from pyspark_rocketmq import brokers, commits, layouts, uploads
from pyspark_rocketmq.cluster import Cluster, TopicGone
from pyspark_rocketmq.commits import commit_batch
from pyspark_rocketmq.errors import BrokerError, OptionError
from pyspark_rocketmq.layouts import SinkLayout, find_layout, merged, save_layout
from pyspark_rocketmq.options import sink_options
from pyspark_rocketmq.rows import Row, RowForm, UniqueKeys
from pyspark_rocketmq.uploads import PartitionUpload, SinkBatch, upload_partition
from tests.live import Live, Servers, live
from tests.unit.connector.test_rows import TYPES
from tests.unit.connector.test_source import bodies, read
from wheelmq.client import AccessKey, OutgoingMessage, SyncAdmin, SyncPullConsumer
from wheelmq.formats.disk.batch import BatchId
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError
from wheelmq.net.sync_connection import SyncConnection

QUERY = "8e2a2f6a-query"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests to a stopped broker fail soon."""
    monkeypatch.setattr(brokers, "RETRY_DELAYS_S", (0.0,))
    monkeypatch.setattr(commits, "PATIENCE_S", 0.0)
    monkeypatch.setattr(commits, "POLL_S", 0.0)


class Query:
    """A streaming query as Spark drives it: tasks with attempts, and one commit for each batch."""

    def __init__(self, servers: Servers, topic: str | None = None, **options: str) -> None:
        self.servers = servers
        self.topic = topic or servers.topic
        chosen = {"namesrvAddr": servers.namesrv, "guarantee": "exactly-once", "topic": self.topic, **options}
        self.options = sink_options(chosen)
        self._attempts = count()

    def task(self, partition: int, sent: list[bytes], *, batch: int = 0, **columns: list[Any]) -> PartitionUpload:
        """Run one attempt of a task."""
        chosen = {"body": sent, **columns}
        form = RowForm(
            columns=tuple(chosen), topic=self.topic, body_bytes_max=self.options.body_bytes_max, delivers_past=False
        )
        arrays = [pa.array(values, TYPES.get(name, pa.string())) for name, values in chosen.items()]
        rows = pa.RecordBatch.from_arrays(arrays, names=list(chosen))
        keys = UniqueKeys(f"{QUERY}/{batch}", partition)
        work, attempt = SinkBatch(BatchId(QUERY, batch), True), next(self._attempts)
        return upload_partition(self.options, form, [rows.slice(0, 7), rows.slice(7)], keys, work, partition, attempt)

    def commit(self, *found: PartitionUpload) -> int:
        return commit_batch(self.options.connection, found)

    def run(self, sent: list[bytes], *, batch: int = 0) -> int:
        """Run a batch of two tasks as a whole."""
        middle = len(sent) // 2
        return self.commit(self.task(0, sent[:middle], batch=batch), self.task(1, sent[middle:], batch=batch))

    def delivered(self, topic: str | None = None) -> list[bytes]:
        return sorted(bodies(read(self.servers, topic=topic or self.topic)))


def numbers(*spans: range) -> list[bytes]:
    return sorted(b"%d" % i for span in spans for i in span)


@pytest.fixture
def query(servers: Live) -> Query:
    servers.create_topic(servers.topic)
    return Query(servers)


@pytest.fixture
def pair(servers: Live) -> Query:
    """A query whose topic has two brokers."""
    servers.add_broker("broker-b")
    servers.create_topic("Pair")
    return Query(servers, "Pair")


class TestTasks:
    def test_rows_are_visible_after_the_commit_only(self, query: Query) -> None:
        uploaded = [query.task(i, numbers(range(10 * i, 10 * i + 10))) for i in range(3)]
        assert query.delivered() == []
        assert query.commit(*uploaded) == 30 and query.delivered() == numbers(range(30))
        keys = {row["msgId"] for row in read(query.servers, topic=query.topic)}
        assert keys == {found.next() for i in range(3) for found in [UniqueKeys(f"{QUERY}/0", i)] for _ in range(10)}

    def test_the_attempt_that_the_driver_names_counts(self, query: Query) -> None:
        first = query.task(0, numbers(range(10)))
        query.task(0, numbers(range(10)))  # a speculative attempt
        assert query.commit(first) == 10 and query.delivered() == numbers(range(10))

    def test_a_failed_attempt_leaves_no_row(self, query: Query) -> None:
        with pytest.raises(OptionError, match="column body is null"):
            query.task(0, [b"0"] * 300 + [None])  # type: ignore[list-item]
        assert query.commit(query.task(0, numbers(range(5)))) == 5 and query.delivered() == numbers(range(5))

    def test_an_aborted_batch_leaves_no_row(self, query: Query) -> None:
        query.task(0, numbers(range(5)))
        assert query.run(numbers(range(10, 20)), batch=1) == 10 and query.delivered() == numbers(range(10, 20))

    def test_a_batch_without_rows_needs_no_commit(self, query: Query) -> None:
        assert query.commit(query.task(0, []), query.task(1, [])) == 0 == query.commit()

    def test_a_batch_of_many_chunks_arrives(self, query: Query) -> None:
        large = [b"%d" % i * 150_000 for i in range(10)]
        assert query.commit(query.task(0, numbers(range(1500))), query.task(1, large)) == 1510
        assert query.delivered() == sorted(numbers(range(1500)) + large)

    def test_rows_with_a_sharding_key_stay_in_order(self, query: Query) -> None:
        sent = [b"%d" % i for i in range(600)]
        query.commit(query.task(0, sent, shardingKey=[f"k{i % 5}" for i in range(600)]))
        rows = read(query.servers, topic=query.topic)
        for i in range(5):
            mine = [row for row in rows if int(row["body"]) % 5 == i]
            assert bodies(mine) == sent[i::5] and len({row["queueId"] for row in mine}) == 1

    def test_delayed_rows_arrive_with_their_due_time(self, query: Query) -> None:
        now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        due = [now + datetime.timedelta(seconds=2, milliseconds=i % 10) for i in range(20)]
        first = query.task(0, numbers(range(20)), deliverTime=due)
        query.commit(first, query.task(1, [b"delayed"], delayMs=[500]), query.task(2, [b"level"], delayLevel=[1]))
        came: dict[bytes, Any] = {}
        with SyncPullConsumer(query.servers.namesrv, "group") as consumer:
            consumer.subscribe(query.topic)
            while len(came) < 22:
                found = consumer.poll(20_000)
                assert found
                came |= {message.body: message for message in found}
        assert [came[body].due_ms for body in numbers(range(20))] == [round(one.timestamp() * 1000) for one in due]
        assert query.delivered() == sorted([*numbers(range(20)), b"delayed", b"level"])


class TestRepeats:
    def test_a_repeated_batch_changes_nothing(self, query: Query) -> None:
        for _ in range(3):
            assert query.run(numbers(range(10))) == 10
        assert query.delivered() == numbers(range(10))
        assert query.run(numbers(range(10)), batch=1) == 10  # the same rows in another batch are other rows
        assert query.delivered() == numbers(range(10), range(10))

    def test_a_batch_is_repeated_after_the_driver_died_before_its_commit(self, query: Query) -> None:
        query.task(0, numbers(range(5)))
        query.task(1, numbers(range(5, 10)))
        assert query.run(numbers(range(10))) == 10 and query.delivered() == numbers(range(10))

    def test_a_commit_without_an_answer_is_repeated(self, query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
        lost: list[Command | None] = []

        def lossy(cluster: Cluster, broker: str, command: Command) -> Command | None:
            answer = brokers.asked_once(cluster, broker, command)
            lost.append(answer)
            return None if len(lost) < 3 else answer

        monkeypatch.setattr(commits, "asked_once", lossy)
        monkeypatch.setattr(commits, "PATIENCE_S", 20.0)
        assert query.run(numbers(range(10))) == 10 and query.delivered() == numbers(range(10))
        assert [answer.code for answer in lost if answer][1:] == [ResponseCode.SUCCESS] * 2

    def test_a_commit_survives_a_restart_of_the_broker(self, query: Query) -> None:
        uploaded = query.task(0, numbers(range(10)))
        for _ in range(2):
            query.servers.stop_broker("broker-a")
            query.servers.add_broker("broker-a")
            assert query.commit(uploaded) == 10
        assert query.delivered() == numbers(range(10))

    def test_a_repeated_batch_with_other_rows_changes_nothing(self, query: Query) -> None:
        query.run(numbers(range(10)))
        assert query.run(numbers(range(20))) == 10 and query.delivered() == numbers(range(10))

    def test_a_batch_of_an_old_checkpoint_is_an_error(self, query: Query) -> None:
        query.run(numbers(range(10)), batch=1)
        with pytest.raises(BrokerError, match=r"is at batch 1 here, and the request has batch 0.*new checkpoint"):
            query.run(numbers(range(10)))
        assert query.delivered() == numbers(range(10))

    def test_a_changed_upload_is_an_error_with_a_remedy(self, query: Query) -> None:
        uploaded = query.task(0, numbers(range(10)))
        (part,) = uploaded.parts["broker-a"]
        wrong = msgspec.structs.replace(part, rows=9)
        with pytest.raises(BrokerError, match=r"is not committed.*has 10 rows.*Start the query again"):
            query.commit(PartitionUpload(uploaded.batch, uploaded.topics, {"broker-a": [wrong]}, 9))
        assert query.delivered() == []


class TestBrokers:
    def test_rows_go_to_all_topics_and_brokers(self, pair: Query) -> None:
        pair.servers.create_topic("Other")
        sent = numbers(range(100))
        found = pair.task(0, sent, topic=["Pair", "Other"] * 50)
        assert set(found.topics) == {"Pair", "Other"} and set(found.parts) == {"broker-a", "broker-b"}
        assert pair.commit(found) == 100
        assert sorted(pair.delivered() + pair.delivered("Other")) == sent
        assert {row["broker"] for row in read(pair.servers, topic="Other")} == {"broker-a", "broker-b"}

    def test_a_broker_that_is_away_holds_up_the_whole_commit(self, pair: Query) -> None:
        found = pair.task(0, numbers(range(40)))
        pair.servers.stop_broker("broker-b")
        with pytest.raises(BrokerError, match="broker broker-b does not answer: start it"):
            pair.commit(found)
        assert pair.delivered() == []
        pair.servers.add_broker("broker-b")
        assert pair.commit(found) == 40 and pair.delivered() == numbers(range(40))

    @pytest.mark.parametrize("joins", [False, True])
    def test_a_repeated_batch_completes_the_broker_that_was_down(
        self, pair: Query, monkeypatch: pytest.MonkeyPatch, joins: bool
    ) -> None:
        """Its rows must not go to the other brokers, which appear in the route alone while it is away."""
        with monkeypatch.context() as patch:
            patch.setattr(commits, "save_layout", then(save_layout, lambda: pair.servers.stop_broker("broker-b")))
            with pytest.raises(BrokerError, match=r"is not complete: broker broker-b does not answer.*completes it"):
                pair.run(numbers(range(40)))
        at_first = pair.delivered()
        assert 0 < len(at_first) < 40
        if joins:
            pair.servers.add_broker("broker-c")
            pair.servers.create_topic("Pair")
        with pytest.raises(BrokerError, match="broker broker-b does not answer"):
            pair.run(numbers(range(40)))
        assert pair.delivered() == at_first
        pair.servers.add_broker("broker-b")
        assert pair.run(numbers(range(40))) == 40 and pair.delivered() == numbers(range(40))
        assert pair.run(numbers(range(40, 80)), batch=1) == 40  # a new batch uses the new broker, too
        assert pair.delivered() == numbers(range(80))
        assert {row["broker"] for row in read(pair.servers, topic="Pair")} == {
            *("broker-a", "broker-b"), *(["broker-c"] if joins else [])
        }  # fmt: skip

    def test_the_order_of_rows_does_not_decide_their_broker(self, pair: Query, monkeypatch: pytest.MonkeyPatch) -> None:
        """As after a shuffle, which gives the rows of a partition in another order each time."""
        sent = numbers(range(40))
        with monkeypatch.context() as patch:
            patch.setattr(commits, "save_layout", then(save_layout, lambda: pair.servers.stop_broker("broker-b")))
            with pytest.raises(BrokerError, match="is not complete"):
                pair.run(sent)
        pair.servers.add_broker("broker-b")
        assert pair.run(sent[::-1]) == 40 and pair.delivered() == sent

    def test_a_mixture_of_two_runs_is_an_error(self, pair: Query, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(commits, "save_layout", then(save_layout, lambda: pair.servers.stop_broker("broker-b")))
            with pytest.raises(BrokerError, match="is not complete"):
                pair.run(numbers(range(40)))
        at_first = pair.delivered()
        pair.servers.add_broker("broker-b")
        with pytest.raises(BrokerError, match=r"the job gave other rows this time: broker-a has .*deterministic"):
            pair.run(numbers(range(60)))
        assert pair.delivered() == at_first
        assert pair.run(numbers(range(40))) == 40 and pair.delivered() == numbers(range(40))

    def test_tasks_with_different_routes_are_an_error(self, pair: Query) -> None:
        first = pair.task(0, numbers(range(40)))
        pair.servers.stop_broker("broker-b")
        with pytest.raises(BrokerError, match="the queues of topic Pair changed while the tasks ran"):
            pair.commit(first, pair.task(1, numbers(range(40, 80))))
        assert pair.delivered() == []

    def test_of_two_layouts_only_a_complete_one_counts(self, pair: Query) -> None:
        """The first run saved its layout at broker-a only. The second run ended without broker-a."""
        batch, both, one = BatchId(QUERY, 0), {"Pair": {"broker-a": 2, "broker-b": 2}}, {"Pair": {"broker-b": 2}}
        with Cluster(pair.options.connection) as cluster:
            cluster.registered()
            cluster.ask("broker-a", layouts._request(batch, both))
            assert find_layout(cluster, batch) == both
            assert save_layout(cluster, batch, one) == {}
            assert find_layout(cluster, batch) == one
            with pytest.raises(BrokerError, match="broker broker-b has another layout of batch"):
                save_layout(cluster, batch, both)
            cluster.ask("broker-a", layouts._request(BatchId(QUERY, 1), {"Pair": {"broker-a": 2}}))
            save_layout(cluster, BatchId(QUERY, 1), one)
            with pytest.raises(BrokerError, match="remember different layouts of batch"):
                find_layout(cluster, BatchId(QUERY, 1))


class DriverDied(Exception):
    """The driver is killed."""


class Faults:
    """Kills the driver, restarts brokers, stops broker-b and loses answers at some requests of batches.

    The first broker is never away for long: one broker has to remember the layout.
    """

    CODES = (RequestCode.WMQ_BATCH_UPLOAD, RequestCode.WMQ_BATCH_LAYOUT, RequestCode.WMQ_BATCH_COMMIT)

    def __init__(self, servers: Live, chance: Random) -> None:
        self._servers, self._chance = servers, chance
        self.begin = SyncConnection.begin
        self.seen: Counter[str] = Counter()

    def faulty_begin(self, connection: SyncConnection, command: Command) -> int:
        kinds = ("none", "dies before", "dies after", "is lost", "broker restarts", "broker stops")
        kind = self._chance.choices(kinds, (16, 1, 1, 1, 1, 1))[0] if command.code in self.CODES else "none"
        self.seen[kind] += 1
        if kind == "dies before":
            raise DriverDied
        if kind == "broker restarts":
            name = self._chance.choice(sorted(self._servers.brokers))
            self._servers.stop_broker(name)
            self._servers.add_broker(name)
        if kind == "broker stops" and "broker-b" in self._servers.brokers:
            self._servers.stop_broker("broker-b")
        number = self.begin(connection, command)
        if kind in ("dies after", "is lost"):
            connection.finish(number)
            raise DriverDied if kind == "dies after" else CallError("the answer is lost")
        return number


@pytest.mark.parametrize("seed", range(6))
def test_faults_at_any_request_neither_lose_nor_double(pair: Query, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    assert isinstance(pair.servers, Live)
    chance, expected, runs = Random(seed), list[bytes](), 0
    faults = Faults(pair.servers, chance)
    with monkeypatch.context() as patch:
        patch.setattr(SyncConnection, "begin", lambda *given: faults.faulty_begin(*given))
        for batch in range(4):
            sent = [b"%d-%d" % (batch, i) for i in range(chance.randrange(1, 40))]
            expected += sent
            while True:
                runs += 1
                chance.shuffle(sent)
                try:
                    pair.run(sent, batch=batch)
                    break
                except (DriverDied, BrokerError):
                    assert runs < 500
                if "broker-b" not in pair.servers.brokers and chance.random() < 0.5:
                    pair.servers.add_broker("broker-b")
    if "broker-b" not in pair.servers.brokers:
        pair.servers.add_broker("broker-b")
    assert pair.delivered() == sorted(expected), (seed, faults.seen)
    assert runs > 4 and len(faults.seen) > 2


class TestErrors:
    def test_a_broker_without_the_requests_is_an_error_with_a_remedy(
        self, query: Query, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As an older version of WheelMQ, which has no layouts, or Apache's broker, which has no batches at all."""
        unknown = r"guarantee is exactly-once, and broker broker-a does not know its requests.*to at-least-once"
        monkeypatch.setattr(layouts, "RequestCode", SimpleNamespace(WMQ_BATCH_LAYOUT=9199))
        uploaded = query.task(0, [b"x"])
        with pytest.raises(OptionError, match=unknown):
            query.commit(uploaded)
        monkeypatch.setattr(uploads, "RequestCode", SimpleNamespace(WMQ_BATCH_UPLOAD=9198))
        with pytest.raises(OptionError, match=unknown):
            query.task(0, [b"x"])
        assert query.delivered() == []

    def test_a_topic_must_exist(self, query: Query) -> None:
        with pytest.raises(TopicGone, match="does not know topic Absent: check its name, or create it"):
            query.task(0, [b"x"], topic=["Absent"])

    def test_a_due_time_beyond_the_limit_is_an_error(self, query: Query) -> None:
        with pytest.raises(OptionError, match=r"column deliverTime or delayMs, topic T: the delay is .*90\.0 days"):
            query.task(0, [b"x", b"y"], delayMs=[1, 90 * 86_400_000])

    def test_a_broker_with_a_smaller_limit_is_an_error(self, servers: Live) -> None:
        servers.stop_broker("broker-a")
        servers.add_broker("broker-a", body_bytes_max=1000)
        servers.create_topic("Small")
        with pytest.raises(BrokerError, match=r"rows for topic Small are rejected.*set option maxBodyBytes to it"):
            Query(servers, "Small").task(0, [bytes(1001)])

    def test_an_empty_body_is_an_error(self, query: Query) -> None:
        with pytest.raises(OptionError, match="column body is empty, topic T, and guarantee is exactly-once"):
            query.task(0, [b"x", b""])

    def test_a_property_that_no_broker_accepts_is_an_error(self, query: Query) -> None:
        with pytest.raises(OptionError, match="a message for topic T cannot be sent: property 'x'"):
            query.task(0, [b"x"], properties=[[("x", "\x01")]])

    def test_a_busy_broker_gets_the_chunk_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cluster: Any = BusyCluster(2)
        monkeypatch.setattr(brokers, "RETRY_DELAYS_S", (0.0, 0.0))
        assert brokers.answered(cluster, "a", Command(code=0)).code == ResponseCode.SUCCESS
        cluster = BusyCluster(3)
        with pytest.raises(BrokerError, match="SYSTEM_BUSY"):
            brokers.answered(cluster, "a", Command(code=0))


def test_a_query_signs_its_requests(tmp_path: Path) -> None:
    user = '{"username":"spark","password":"secret-of-spark"}'
    with live(tmp_path, authentication_enabled=True, init_authentication_user=user) as servers:
        keys = {"accessKey": "spark", "secretKey": "secret-of-spark"}
        with SyncAdmin(servers.namesrv, access_key=AccessKey(*keys.values())) as admin:
            admin.create_topic("T", queues=1)
        assert Query(servers, **keys).run(numbers(range(10))) == 10
        assert sorted(bodies(read(servers, topic="T", **keys))) == numbers(range(10))
        with pytest.raises(BrokerError, match="the key of options accessKey and secretKey"):
            Query(servers).run(numbers(range(10)))


class TestLayout:
    def test_the_queue_follows_from_the_content(self) -> None:
        layout = SinkLayout(Cluster(sink_options({"namesrvAddr": "127.0.0.1:1"}).connection), {"T": {"b": 4, "a": 4}})
        found = [layout.queue(Row("T", OutgoingMessage(body=b"%d" % i))) for i in range(800)]
        assert found == [layout.queue(Row("T", OutgoingMessage(body=b"%d" % i, tags="t"))) for i in range(800)]
        counts = {queue: found.count(queue) for queue in found}
        assert len(counts) == 8 and min(counts.values()) > 60
        keyed = {layout.queue(Row("T", OutgoingMessage(body=b"%d" % i, order_key="k"))) for i in range(9)}
        assert len(keyed) == 1
        with_keys = {layout.queue(Row("T", OutgoingMessage(body=b"x", keys=[f"{i}", "k"]))) for i in range(99)}
        assert len(with_keys) == 8

    def test_a_lookup_without_the_right_to_it_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A broker may remember a layout that this user cannot read. Another layout could deliver rows twice."""
        cluster: Any = BusyCluster(0)
        monkeypatch.setattr(cluster, "registered", lambda: {"a"})
        monkeypatch.setattr(cluster, "call", lambda command: Command(code=ResponseCode.NO_PERMISSION))
        with pytest.raises(BrokerError, match="Give the rights to the key of options accessKey and secretKey"):
            find_layout(cluster, BatchId(QUERY, 0))

    def test_the_layouts_of_tasks_are_merged(self) -> None:
        assert merged([{"T": {"a": 1}}, {}, {"T": {"a": 1}, "U": {"b": 2}}]) == {"T": {"a": 1}, "U": {"b": 2}}


def then(work: Callable[..., Any], after: Callable[[], None]) -> Callable[..., Any]:
    def both(*given: Any) -> Any:
        result = work(*given)
        after()
        return result

    return both


class BusyCluster:
    """A cluster whose broker is busy for some requests."""

    def __init__(self, rejections: int) -> None:
        self._rejections = rejections

    def link(self, broker: str) -> BusyCluster:
        return self

    def registered(self) -> set[str]:
        return set()

    def call(self, command: Command) -> Command:
        self._rejections -= 1
        return Command(code=ResponseCode.SYSTEM_BUSY if self._rejections >= 0 else ResponseCode.SUCCESS)
