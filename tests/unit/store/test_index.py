"""The message index: files in Apache's format that follow the log. They are rebuilt if they may be damaged."""

from __future__ import annotations

import errno
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wheelmq.broker.handlers.query import CATCH_UP_MS
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.index import (
    INDEX_HEADER,
    INDEX_UNIT,
    STEPS_MAX,
    IndexSize,
    find_key,
    index_file_name,
    index_hash,
    index_keys,
    is_index_file_name,
    put_key,
    seconds_since,
)
from wheelmq.formats.kernels import index as kernel
from wheelmq.formats.kernels.arrays import read_only
from wheelmq.formats.kernels.index import DONE, WANTED, index_log
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.store.index import GATHER_BYTES, MessageIndex
from wheelmq.system.mapped_file import MappedFile
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness, records_in
from wheelmq.testing.workers import HeldWorker

FOREVER = 1 << 62
SMALL = IndexSize(10, 6)
TIMES = (Millis(0), Millis(FOREVER))


@pytest.mark.parametrize("size", [IndexSize(10, 1), IndexSize(10, 0), IndexSize(0, 10)])
def test_a_file_without_room_for_an_entry_is_rejected(harness: BrokerHarness, size: IndexSize) -> None:
    with pytest.raises(ValueError, match=f"not {size.slots} and {size.units}"):
        MessageIndex(harness.broker.parts.store, harness.background, size)


def test_a_key_that_fits_no_file_ends_the_job(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job begins one file, and not one file after the other."""
    monkeypatch.setattr("wheelmq.store.index.put_key", lambda *_: False)
    harness.send("T", properties={props.KEYS: "k"})
    harness.settle()
    index = harness.broker.parts.index
    assert index is not None and "AssertionError" in index._failure
    assert len(files_of(harness)) == 1


def test_a_snapshot_names_no_removed_file(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean stop removes the last file if its flush fails. The next flush of that file would succeed."""
    harness.send("T", properties={props.KEYS: "k"})
    harness.settle()
    index = harness.broker.parts.index
    assert index is not None
    path, failures = index._files[-1].path, [OSError(errno.EIO, "Input/output error")]
    monkeypatch.setattr(MappedFile, "sync", failing_sync(path, failures))
    harness.stop()
    assert not failures and not path.exists()
    harness.start()
    assert harness.broker.parts.store.index_mark is None
    harness.settle()
    assert len(files_of(harness)) == 1


def failing_sync(path: Path, failures: list[OSError]) -> Callable[..., None]:
    """Return a method `sync` for mapped files that first raises `failures` for the file at `path`."""
    real = MappedFile.sync

    def sync(file: MappedFile, upto_bytes: int, *, new_from: int | None = None) -> None:
        if file.path == path and failures:
            raise failures.pop()
        real(file, upto_bytes, new_from=new_from)

    return sync


class TestFile:
    def test_a_file_has_the_size_of_apache(self) -> None:
        assert IndexSize().file_bytes == 420_000_040

    def test_a_hash_combines_topic_and_key(self) -> None:
        assert index_hash("", "") == ord("#")
        assert index_hash("T", "k") == (ord("T") * 31 + ord("#")) * 31 + ord("k")
        assert index_hash("TopicTest", "polygenelubricants") > 0

    def test_a_java_hash_without_an_absolute_value_gives_zero(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("wheelmq.formats.disk.index.java_hash", lambda text: -(1 << 31))
        assert index_hash("T", "k") == 0

    def test_the_keys_are_the_unique_key_and_the_words_of_keys(self) -> None:
        assert index_keys({props.KEYS: " a  b ", props.UNIQ_KEY: "u v"}) == ["u v", "a", "b"]
        assert index_keys({}) == []

    def test_header_and_entries_have_the_layout_of_apache(self) -> None:
        file = memoryview(bytearray(SMALL.file_bytes))
        assert put_key(file, SMALL, 12, LogPosition(1000), Millis(5_000))
        assert put_key(file, SMALL, 22, LogPosition(2000), Millis(7_999))
        assert INDEX_HEADER.unpack(file) == {
            "begin_ms": 5000, "end_ms": 7999, "begin_position": 1000, "end_position": 2000, "slots_used": 1, "count": 3,
        }  # fmt: skip
        assert struct.unpack_from(">i", file, 40 + 4 * 2) == (2,)
        assert bytes(file[40 + 40 + 20 :][:40]) == INDEX_UNIT.pack(12, 1000, 0, 0) + INDEX_UNIT.pack(22, 2000, 2, 1)

    def test_a_full_file_rejects_keys(self) -> None:
        file = memoryview(bytearray(SMALL.file_bytes))
        taken = [put_key(file, SMALL, i, LogPosition(i), Millis(1)) for i in range(7)]
        assert taken == [True] * 5 + [False] * 2

    def test_the_seconds_of_an_entry_stay_within_their_range(self) -> None:
        assert seconds_since(Millis(0), Millis(9000)) == 0
        assert seconds_since(Millis(5000), Millis(4000)) == 0
        assert seconds_since(Millis(1), Millis(1 << 50)) == 0x7FFF_FFFF

    def test_a_search_returns_the_newest_entries_within_the_time(self) -> None:
        file = memoryview(bytearray(SMALL.file_bytes))
        for i in range(4):
            put_key(file, SMALL, 2 if i != 2 else 12, LogPosition(100 + i), Millis(10_000 + 1000 * i))

        def find(begin_ms: int, end_ms: int, most: int) -> list[LogPosition]:
            return find_key(file, SMALL, 2, Millis(begin_ms), Millis(end_ms), most)

        assert find(0, FOREVER, 9) == [103, 101, 100]
        assert find(0, FOREVER, 2) == [103, 101]
        assert find(10_500, 11_500, 9) == [101]
        assert find_key(file, SMALL, 3, Millis(0), Millis(FOREVER), 9) == []

    def test_a_chain_that_does_not_go_back_ends(self) -> None:
        file = memoryview(bytearray(SMALL.file_bytes))
        put_key(file, SMALL, 2, LogPosition(1), Millis(1))
        file[SMALL.units_at + 20 :][16:20] = (1).to_bytes(4, "big")
        assert find_key(file, SMALL, 2, Millis(0), Millis(FOREVER), 9) == [1]

    def test_a_search_for_a_common_key_is_limited(self) -> None:
        size = IndexSize(4, STEPS_MAX + 10)
        file = memoryview(bytearray(size.file_bytes))
        for i in range(size.units - 1):
            put_key(file, size, 4, LogPosition(i), Millis(1))
        assert find_key(file, size, 0, Millis(0), Millis(FOREVER), 9) == []
        assert len(find_key(file, size, 4, Millis(0), Millis(FOREVER), 1 << 20)) == STEPS_MAX

    def test_a_file_is_named_by_its_local_time(self) -> None:
        name = index_file_name(Millis(1_700_000_000_007))
        assert is_index_file_name(name) and name.endswith("007") and name.startswith("2023111")
        assert not is_index_file_name("20231114") and not is_index_file_name("x" * 17)


def query(harness: BrokerHarness, key: str, topic: str = "T", **fields: object) -> Command:
    asked = {"topic": topic, "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": FOREVER, **fields}
    found = harness.submit(Command(code=RequestCode.QUERY_MESSAGE, ext=headers.texts(**asked)))
    harness.tick()
    if found.answer is None:
        harness.advance(CATCH_UP_MS)
    assert found.answer is not None
    return found.answer


def bodies_of(answer: Command) -> list[bytes]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return [record.message.body for record in records_in(bytes(answer.body))]


def until(condition: Callable[[], bool]) -> None:
    """Wait until another thread makes the condition true."""
    end_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end_s


def send(harness: BrokerHarness, body: bytes, **properties: str) -> None:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    assert harness.ask(harness.send_command("T", body, i=text)).code == 0
    harness.tick()


class TestQuery:
    def test_a_message_is_found_by_each_of_its_keys(self, harness: BrokerHarness) -> None:
        send(harness, b"1", KEYS="a b", UNIQ_KEY="u1")
        send(harness, b"2", KEYS="b", UNIQ_KEY="u2")
        send(harness, b"3")
        assert bodies_of(query(harness, "a")) == bodies_of(query(harness, "u1")) == [b"1"]
        assert bodies_of(query(harness, "b")) == [b"1", b"2"]
        assert int(query(harness, "b").ext["indexLastUpdatePhyoffset"]) > 0
        assert query(harness, "b", topic="other").code == query(harness, "c").code == ResponseCode.QUERY_NOT_FOUND

    def test_a_query_returns_at_most_the_newest_messages(self, harness: BrokerHarness) -> None:
        for i in range(70):
            send(harness, b"%d" % i, KEYS="k")
        assert bodies_of(query(harness, "k", maxNum=3)) == [b"67", b"68", b"69"]
        assert len(bodies_of(query(harness, "k", maxNum=1000))) == 64
        assert len(bodies_of(query(harness, "k", maxNum=1, _UNIQUE_KEY_QUERY="true"))) == 32

    def test_a_query_returns_messages_within_its_time(self, harness: BrokerHarness) -> None:
        send(harness, b"early", KEYS="k")
        harness.advance(10_000)
        send(harness, b"late", KEYS="k")
        now_ms = harness.clock.now_ms()
        assert bodies_of(query(harness, "k", beginTimestamp=now_ms - 5000)) == [b"late"]
        assert bodies_of(query(harness, "k", endTimestamp=now_ms - 5000)) == [b"early"]

    def test_a_timer_is_found_while_it_waits_and_after_its_release(self, harness: BrokerHarness) -> None:
        harness.send("T", b"t", delay_ms=1000, i="KEYS\x01k\x02TIMER_DELAY_MS\x011000\x02")
        harness.tick()
        assert bodies_of(query(harness, "k", topic="rmq_sys_wheel_timer")) == [b"t"]
        assert query(harness, "k").code == ResponseCode.QUERY_NOT_FOUND
        harness.advance(1500)
        assert bodies_of(query(harness, "k")) == [b"t"]

    def test_a_message_is_found_by_its_position(self, harness: BrokerHarness) -> None:
        send(harness, b"x")
        position = harness.pull("T").records[0].position
        found = harness.ask(Command(code=RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": str(position)}))
        assert bodies_of(found) == [b"x"]
        for wrong in (position + 1, -1, 1 << 40):
            refused = harness.ask(Command(code=RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": str(wrong)}))
            assert (refused.code, refused.remark) == (1, f"can not find message by the offset, {wrong}")

    def test_a_query_without_an_index_finds_nothing(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, message_index_enable=False) as harness:
            send(harness, b"1", KEYS="a")
            assert query(harness, "a").code == ResponseCode.QUERY_NOT_FOUND
            assert not harness.broker.parts.paths.index.exists()


def files_of(harness: BrokerHarness) -> list[Path]:
    return sorted(harness.broker.parts.paths.index.iterdir())


class TestFollowing:
    def test_keys_are_found_across_files(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, max_index_num=11) as harness:
            for i in range(25):
                send(harness, b"%d" % i, KEYS=f"k{i} all")
            assert len(files_of(harness)) == 8  # three keys each, ten to a file
            assert bodies_of(query(harness, "all")) == [b"%d" % i for i in range(25)]
            for i in range(25):
                assert bodies_of(query(harness, f"k{i}")) == [b"%d" % i]
            first, second = (INDEX_HEADER.unpack(file.read_bytes()) for file in files_of(harness)[:2])
            assert first["count"] == 11 and first["end_position"] <= second["begin_position"]
            assert harness.broker.parts.store.index_ms == harness.clock.now_ms()

    @pytest.mark.parametrize("stop", ["restart", "crash"])
    def test_keys_are_found_after_a_stop(self, tmp_path: Path, stop: str) -> None:
        with BrokerHarness(tmp_path, max_index_num=11) as harness:
            for i in range(13):
                send(harness, b"%d" % i, KEYS=f"k{i}")
            if stop == "restart":
                harness.restart()
            else:
                harness.crash()
                harness.start()
            send(harness, b"13", KEYS="k13")
            for i in range(14):
                assert bodies_of(query(harness, f"k{i}")) == [b"%d" % i]

    def test_missing_files_are_rebuilt(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, max_index_num=11) as harness:
            for i in range(30):
                send(harness, b"%d" % i, KEYS=f"k{i}")
            files = files_of(harness)
            harness.stop()
            for file in files:
                file.unlink()
            harness.start()
            harness.tick()
            for i in range(30):
                assert bodies_of(query(harness, f"k{i}")) == [b"%d" % i]

    def test_sends_and_queries_do_not_wait_for_the_index(self, tmp_path: Path) -> None:
        background = HeldWorker()
        with BrokerHarness(tmp_path, worker=background) as harness:
            send(harness, b"1", KEYS="a")
            assert query(harness, "a").code == ResponseCode.QUERY_NOT_FOUND
            harness.run_jobs()
            assert bodies_of(query(harness, "a")) == [b"1"]

    def test_keys_sent_shortly_after_each_other_are_added_together(self, tmp_path: Path) -> None:
        """The first key is added at once. The broker requests a tick for the others. A large backlog never waits."""
        with BrokerHarness(tmp_path) as harness:
            index = harness.broker.parts.index
            assert index is not None
            index.gather_s = 0.02

            def found(key: str) -> int:
                return len(index.find("T", key, *TIMES, 10).positions)

            send(harness, b"1", KEYS="a")
            assert found("a") == 1
            send(harness, b"2", KEYS="b")
            send(harness, b"3", KEYS="c")
            assert found("b") == found("c") == 0
            harness.advance(19)
            assert found("b") == 0 and harness.broker.next_tick_ms() <= 2
            harness.advance(2)
            assert found("b") == found("c") == 1 and index.next_s() is None
            send(harness, b"x" * GATHER_BYTES, KEYS="d")
            assert found("d") == 1

    @pytest.mark.kernels
    def test_a_search_may_interrupt_an_index_job(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The search runs in the midst of a job, and the job continues after it."""
        background = HeldWorker()
        with BrokerHarness(tmp_path, worker=background) as harness:
            send(harness, b"first", KEYS="all")
            background.run()
            for i in range(300):
                send(harness, b"%d" % i, KEYS=f"k{i} all")
            background.run()  # the first of them; all others are one job
            harness.tick()
            index = harness.broker.parts.index
            assert index is not None
            found: list[int] = []
            asking = threading.Thread(target=lambda: found.append(len(index.find("T", "all", *TIMES, 1000).positions)))
            outcomes: list[int] = []

            def index_log(*arguments: Any) -> int:
                if not outcomes:  # the job has the index file; the search requests it
                    asking.start()
                    until(lambda: bool(index._wanted[0]))
                outcomes.append(kernel.index_log(*arguments))
                return outcomes[-1]

            monkeypatch.setattr(
                "wheelmq.store.index.kernel", SimpleNamespace(**vars(kernel) | {"index_log": index_log})
            )
            background.run()
            asking.join()
            assert (outcomes[0], outcomes[-1]) == (WANTED, DONE) and not index._wanted[0]
            assert 2 < found[0] < 301, "what was added until then"
            assert len(index.find("T", "all", *TIMES, 1000).positions) == 301
            assert all(bodies_of(query(harness, f"k{i}")) == [b"%d" % i] for i in range(300))

    @pytest.mark.kernels
    def test_the_flag_is_read_while_the_kernel_runs(self, harness: BrokerHarness) -> None:
        """Another thread sets the flag, and the kernel must not keep it in a register."""
        for i in range(2000):
            assert harness.send("T", b"%d" % i).code == 0
        log, size = harness.broker.parts.store.log, IndexSize(10, 100_000)
        file, state, wanted = np.zeros(size.file_bytes, np.uint8), np.zeros(1, np.int64), np.zeros(1, np.int64)
        runs = 0

        def add_again_and_again() -> None:
            nonlocal runs
            while runs < 1000:
                runs, state[0], file[:] = runs + 1, 0, 0
                args = (read_only(log.files.file_at(0).array), 0, log.end, file, size.slots, size.units, state, wanted)
                if index_log(*args) == WANTED:
                    return

        adding = threading.Thread(target=add_again_and_again)
        adding.start()
        until(lambda: runs > 3)
        wanted[0] = 1
        adding.join()
        assert runs < 1000 and state[0] < log.end

    @pytest.mark.kernels
    def test_a_failed_job_does_not_add_its_first_records_again(self, tmp_path: Path) -> None:
        disk, background = SimulatedDisk(), HeldWorker()
        with BrokerHarness(tmp_path, disk=disk, worker=background, max_hash_slot_num=10, max_index_num=8) as harness:
            send(harness, b"0", KEYS="k")
            background.run()
            for i in range(1, 20):
                send(harness, b"%d" % i, KEYS="k")
            disk.is_full = lambda path: path.parent.name == "index"
            for _ in range(3):  # it fills the first file and needs another one
                harness.advance(2000)
                background.run()
            disk.is_full = lambda path: False
            harness.advance(2000)
            harness.run_jobs()
            assert bodies_of(query(harness, "k")) == [b"%d" % i for i in range(20)]
            counts = [INDEX_HEADER.unpack(file.read_bytes())["count"] for file in sorted(tmp_path.glob("index/*"))]
            keys = sum(count - 1 for count in counts)
            assert 40 <= keys <= 41, "a key and a unique one of each, and once more what failed between the two"

    def test_a_job_on_a_full_disk_is_retried(self, tmp_path: Path) -> None:
        disk = SimulatedDisk()
        disk.is_full = lambda path: path.parent.name == "index"
        with BrokerHarness(tmp_path, disk=disk) as harness:
            send(harness, b"1", KEYS="a")
            assert query(harness, "a").code == ResponseCode.QUERY_NOT_FOUND
            disk.is_full = lambda path: False
            harness.advance(2000)
            assert bodies_of(query(harness, "a")) == [b"1"]

    def test_files_of_another_size_are_rebuilt(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            send(harness, b"1", KEYS="a")
        with BrokerHarness(tmp_path, max_index_num=500) as harness:
            harness.tick()
            assert bodies_of(query(harness, "a")) == [b"1"]


class TestLostPages:
    def found(self, harness: BrokerHarness, count: int) -> None:
        harness.tick()
        for i in range(count):
            assert bodies_of(query(harness, f"k{i}")) == [b"%d" % i]

    def test_a_file_that_the_snapshot_does_not_know_may_lose_its_header(self, tmp_path: Path) -> None:
        """Its slots are on disk and its header is not, so the file looks empty."""
        with BrokerHarness(tmp_path, max_index_num=11) as harness:
            for i in range(13):
                send(harness, b"%d" % i, KEYS=f"k{i}")
            last = files_of(harness)[-1]
            harness.crash()
            before = INDEX_HEADER.unpack(last.read_bytes())
            ends = before["begin_ms"], before["begin_ms"], before["begin_position"], before["begin_position"]
            for header in (bytes(INDEX_HEADER.size), INDEX_HEADER.pack(*ends, 0, 0)):
                with open(last, "r+b") as file:
                    file.write(header)
                harness.start()
                self.found(harness, 13)
                assert harness.broker.parts.index is not None
                assert harness.broker.parts.index.find_all("T", "k12", lambda: LogPosition(0))
                harness.crash()

    def test_the_name_of_a_new_file_sorts_after_those_of_the_snapshot(self, tmp_path: Path) -> None:
        """The clock is set back, and the files of the snapshot are missing."""
        with BrokerHarness(tmp_path, max_index_num=11) as harness:
            for i in range(13):
                send(harness, b"%d" % i, KEYS=f"k{i}")
            harness.advance(5000)
            names = [path.name for path in files_of(harness)]
            harness.crash()
            for path in (tmp_path / "index").iterdir():
                path.unlink()
            harness.clock.step(-3_600_000)
            harness.start()
            self.found(harness, 13)
            assert min(path.name for path in files_of(harness)) > max(names)


@pytest.mark.parametrize("at", [0, 4, 28, 84], ids=["size", "magic", "position", "body size"])
def test_a_damaged_record_does_not_stop_the_index(tmp_path: Path, caplog: pytest.LogCaptureFixture, at: int) -> None:
    """The keys of the damaged record are no longer found, and all other keys are."""
    with BrokerHarness(tmp_path, log_file_bytes=1 << 20) as harness:
        for i in range(9):
            harness.send("T", b"%d" % i, properties={props.KEYS: f"key{i}"})
        harness.advance(100)
        records = harness.read_queue("T")
        harness.stop()
        for path in (tmp_path / "index").iterdir():
            path.unlink()
        log = tmp_path / "commitlog" / f"{0:020d}"
        with open(log, "r+b") as file:
            file.seek(records[4].position + at)
            file.write(b"\x7f")
        harness.start()
        harness.advance(2000)
        index = harness.broker.parts.index
        assert index is not None and index.indexed_to == harness.broker.parts.store.log.end
        found = [len(index.find("T", f"key{i}", Millis(0), Millis(FOREVER), 9).positions) for i in range(9)]
        assert found == [1, 1, 1, 1, 0, 1, 1, 1, 1]
        assert f"the record at log position {records[4].position} has changed" in caplog.text
