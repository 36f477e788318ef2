"""Tasks on the machine of a broker read the files of its store. They pull from the broker if the files do not fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pyspark_rocketmq import mapped_store, reading
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.offsets import Queue
from pyspark_rocketmq.options import batch_options
from tests.live import Live, Servers, live
from tests.unit.connector.test_source import bodies, read
from wheelmq.formats.disk.paths import StorePaths, file_start

SENT = [b"%04d" % i + bytes(200) for i in range(300)]


@pytest.fixture
def small_files(tmp_path: Path) -> Iterator[Live]:
    """Servers whose log has several files."""
    with live(tmp_path, log_file_bytes=32 << 10) as servers:
        servers.create_topic(servers.topic, queues=1)
        servers.send(servers.topic, SENT, queue_id=0, tags="a", keys="k", properties={"x": "y"})
        yield servers


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first offset of each range that a task pulls from a broker."""
    found: list[int] = []
    pulls = reading.Pulls

    def note(cluster: Any, options: Any, one: Any) -> Any:
        found.append(one.first)
        return pulls(cluster, options, one)

    monkeypatch.setattr(reading, "Pulls", note)
    return found


def log_files(store: Path) -> list[Path]:
    return sorted(path for path in StorePaths(store).commit_log.iterdir() if file_start(path.name) is not None)


def test_a_task_reads_all_columns_from_several_files(small_files: Live, tmp_path: Path, pulled: list[int]) -> None:
    assert len(log_files(tmp_path / "broker-a")) >= 3
    from_files = read(small_files, topic=small_files.topic, storePath=str(tmp_path / "{broker}"))
    assert pulled == []
    assert bodies(from_files) == SENT
    assert from_files == read(small_files, topic=small_files.topic)


class TestFiles:
    """tests/compat runs these tests with stores of Apache RocketMQ too."""

    def test_the_rows_are_those_of_pulls(self, servers: Servers, pulled: list[int]) -> None:
        servers.create_topic(servers.topic)
        servers.send(servers.topic, [b"%d" % i for i in range(100)], queue_id=0, tags="a", keys=["k1", "k2"])
        servers.send(servers.topic, [bytes(5000)] * 50, queue_id=1, properties={"x": "y"})
        from_files = read(servers, topic=servers.topic, storePath=str(servers.store("broker-a")))
        assert pulled == [] and len(from_files) == 150
        assert from_files == read(servers, topic=servers.topic)

    def test_rows_are_filtered_by_their_tags(self, servers: Servers, pulled: list[int]) -> None:
        servers.create_topic(servers.topic, queues=1)
        for tag in ("Aa", "BB", "a"):  # Java gives the first two the same hash
            servers.send(servers.topic, [tag.encode()], tags=tag)
        store = str(servers.store("broker-a"))
        assert bodies(read(servers, topic=servers.topic, tags="BB || a", storePath=store)) == [b"BB", b"a"]
        assert pulled == []

    def test_an_empty_queue_has_no_rows(self, servers: Servers, pulled: list[int]) -> None:
        servers.create_topic(servers.topic, queues=1)
        assert read(servers, topic=servers.topic, storePath=str(servers.store("broker-a"))) == []
        assert pulled == []


def test_a_batch_of_large_bodies_has_a_limit(tmp_path: Path, pulled: list[int]) -> None:
    with live(tmp_path, log_file_bytes=32 << 20) as servers:
        servers.create_topic("T", queues=1)
        servers.send("T", [Random(i).randbytes(3 << 20) for i in range(6)], queue_id=0)
        store = mapped_store.MappedStore(servers.store("broker-a"))
        queue = Queue("T", "broker-a", 0)
        found = [len(records) for records in store.records(queue, store.units(queue, 0, 6), 0)]
        assert sum(found) == 6 and max(found) == 3
        assert len(read(servers, topic="T", storePath=str(servers.store("broker-a")))) == 6
    assert pulled == []


def test_a_machine_without_the_store_pulls(
    small_files: Live, pulled: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    assert bodies(read(small_files, topic=small_files.topic, storePath="/nowhere")) == SENT
    assert pulled == [0]
    assert "/nowhere" in caplog.text and "pulls queue" in caplog.text


def test_the_store_of_another_broker_is_not_read(tmp_path: Path, pulled: list[int]) -> None:
    with live(tmp_path / "one") as one, live(tmp_path / "two") as two:
        for servers, body in ((one, b"mine"), (two, b"hers")):
            servers.create_topic("T", queues=1)
            servers.send("T", [body], queue_id=0)
        assert bodies(read(one, topic="T", storePath=str(tmp_path / "two" / "{broker}"))) == [b"mine"]
    assert pulled == [0]


def lose_the_second_file(store: Path) -> None:
    log_files(store)[1].unlink()


def damage_the_second_file(store: Path) -> None:
    with log_files(store)[1].open("r+b") as file:
        file.seek(1000)
        file.write(bytes(300))


def fill_the_second_file(store: Path) -> None:
    """Write impossible sizes and lengths, with the magic of a record."""
    with log_files(store)[1].open("r+b") as file:
        head = file.read(8)
        file.seek(0)
        file.write(b"\xff\xff\xff\xf0" + head[4:])
        file.seek(84)
        file.write(b"\x7f\xff\xff\x00")


def shorten_the_second_file(store: Path) -> None:
    with log_files(store)[1].open("r+b") as file:
        file.truncate(5000)


HARMS = [lose_the_second_file, damage_the_second_file, fill_the_second_file, shorten_the_second_file]


@pytest.mark.parametrize("harm", HARMS)
def test_a_task_pulls_what_the_files_lack(
    harm: Callable[[Path], None], small_files: Live, tmp_path: Path, pulled: list[int]
) -> None:
    copy = tmp_path / "copy" / "broker-a"
    shutil.copytree(tmp_path / "broker-a", copy)
    harm(copy)
    assert bodies(read(small_files, topic=small_files.topic, storePath=str(copy))) == SENT
    [first] = pulled
    assert 0 < first < len(SENT)


def test_a_copy_without_the_last_messages_is_not_read(small_files: Live, tmp_path: Path, pulled: list[int]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "broker-a", copy)
    small_files.send(small_files.topic, [b"later"], queue_id=0)
    assert bodies(read(small_files, topic=small_files.topic, storePath=str(copy))) == [*SENT, b"later"]
    assert pulled == [0]


@pytest.mark.parametrize(
    ("options", "remedy"),
    [({"storePath": "store"}, "an absolute path"), ({"storePath": "/store", "sql": "a = 1"}, "leave one of them out")],
)
def test_an_option_without_a_use_is_rejected(options: dict[str, str], remedy: str) -> None:
    with pytest.raises(OptionError, match=remedy):
        batch_options({"namesrvAddr": "127.0.0.1:9876", "topic": "T", **options})
