"""The number of queues of a topic, the saving of topics, and the topics in arrays."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random
from unittest import mock

import numpy as np
import pytest

from wheelmq.broker import saved_answers
from wheelmq.broker.new_queues import OPENED_MAX
from wheelmq.broker.state.topics import QUEUES_MAX
from wheelmq.broker.topic_arrays import TopicArrays
from wheelmq.formats.disk import properties as props
from wheelmq.formats.kernels import topics as kernel
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.testing.disk import Call
from wheelmq.testing.harness import BrokerHarness, NoAnswer
from wheelmq.testing.workers import HeldWorker


def create(harness: BrokerHarness, topic: str, read: int, write: int) -> int:
    answer = harness.ask_code(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=topic,
        defaultTopic="TBW102",
        readQueueNums=read,
        writeQueueNums=write,
        perm=6,
    )
    return answer.code


def arrays_of(harness: BrokerHarness) -> TopicArrays:
    broker = harness.broker
    return TopicArrays(broker.parts.topics, broker.parts.store.queues, broker.parts.settings)


class TestOnDisk:
    def test_a_topic_whose_save_fails_is_not_created(self, harness: BrokerHarness) -> None:
        """Otherwise its messages could not be pulled after a stop."""
        harness.disk.fail_call(1, OSError(errno.EIO, "broken"), [Call.REPLACE])
        assert harness.send("T", b"refused").code != 0
        assert harness.broker.parts.topics.get("T") is None
        harness.advance(500)
        assert harness.send("T", b"stored").code == 0
        harness.restart(clean=False)
        assert harness.bodies("T") == [b"stored"]

    def test_a_topic_stays_if_its_deletion_fails(self, harness: BrokerHarness) -> None:
        harness.send("T", b"stored")
        harness.disk.fail_call(1, OSError(errno.EIO, "broken"), [Call.REPLACE])
        assert harness.ask_code(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T").code != 0
        assert harness.bodies("T") == [b"stored"]

    def test_a_message_waits_until_its_new_topic_is_on_disk(self, tmp_path: Path) -> None:
        tables = HeldWorker()
        with BrokerHarness(tmp_path, tables=tables) as harness:
            first, second = (harness.submit(harness.send_command("T", b"%d" % i, queue_id=0)) for i in range(2))
            harness.tick()
            assert first.answer is second.answer is None and harness.broker.parts.store.log.end == 0
            tables.run()
            harness.tick()
            assert first.answer is not None and first.answer.code == 0
            harness.restart(clean=False)
            assert harness.bodies("T") == [b"0", b"1"]

    @pytest.mark.parametrize(
        ("delay", "length"),
        [(props.TIMER_DELAY_MS, "2000"), (props.TIMER_DELAY_SEC, "2"), (props.DELAY_IN_SECONDS, "2")],
    )
    def test_a_delay_starts_when_the_send_arrives(self, tmp_path: Path, delay: str, length: str) -> None:
        tables = HeldWorker()
        with BrokerHarness(tmp_path, tables=tables) as harness:
            begin_ms = harness.now_ms
            harness.submit(harness.send_command("T", b"1", queue_id=0, properties={delay: length}))
            harness.tick()
            harness.advance(700)
            tables.run()
            harness.advance(1999 - (harness.now_ms - begin_ms))
            assert harness.bodies("T") == []
            harness.advance(1)
            assert harness.bodies("T") == [b"1"]

    @pytest.mark.parametrize(
        ("delay", "length"),
        [(props.TIMER_DELAY_MS, "500"), (props.TIMER_DELAY_SEC, "1"), (props.DELAY_IN_SECONDS, "1")],
    )
    def test_a_delay_that_ends_while_the_send_waits_releases_at_once(
        self, tmp_path: Path, delay: str, length: str
    ) -> None:
        tables = HeldWorker()
        with BrokerHarness(tmp_path, tables=tables) as harness:
            asked = harness.submit(harness.send_command("T", b"1", queue_id=0, properties={delay: length}))
            harness.tick()
            harness.advance(1500)
            tables.run()
            harness.tick()
            assert asked.answer is not None and asked.answer.code == 0
            assert harness.bodies("T") == [b"1"]

    def test_a_thousand_new_topics_cause_two_writes(self, tmp_path: Path) -> None:
        tables = HeldWorker()
        with BrokerHarness(tmp_path, tables=tables) as harness:
            asked = [harness.submit(harness.send_command(f"T{i}", queue_id=0)) for i in range(1000)]
            harness.tick()
            assert len(tables) == 1
            more = harness.submit(harness.send_command("late", queue_id=0))
            tables.run()
            harness.settle()
            assert all(one.answer is not None and one.answer.code == 0 for one in asked) and more.answer is None
            assert len(tables) == 1 and tables.run() == 1
            harness.tick()
            assert more.answer is not None and more.answer.code == 0

    def test_the_write_after_one_that_hung_for_a_minute_begins_within_a_second(self, tmp_path: Path) -> None:
        tables = HeldWorker()
        with BrokerHarness(tmp_path, tables=tables) as harness:
            harness.submit(harness.send_command("T", queue_id=0))
            harness.tick()
            late = harness.submit(harness.send_command("late", queue_id=0))
            harness.advance(60_000)
            tables.run()
            harness.advance(1000)
            tables.run()
            harness.tick()
            assert late.answer is not None and late.answer.code == 0

    def test_the_bytes_of_waiting_sends_are_limited(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, tables=HeldWorker(), bytes_in_flight_max=1 << 30) as harness:
            answers = [harness.submit(harness.send_command("T", bytes(4_100_000))) for _ in range(17)]
            harness.tick()
            refused = [one.answer for one in answers if one.answer is not None]
            assert [one.code for one in refused] == [ResponseCode.SYSTEM_BUSY]
            assert "wait for new topics" in (refused[0].remark or "")

    def test_the_properties_of_waiting_sends_are_limited(self, tmp_path: Path) -> None:
        tables = HeldWorker()
        with (
            mock.patch.object(saved_answers, "WAITING_BYTES_MAX", 200_000),
            BrokerHarness(tmp_path, tables=tables) as harness,
        ):
            large = {"key": "x" * 30_000}
            answers = [harness.submit(harness.send_command("T", b"1", properties=large)) for _ in range(20)]
            harness.tick()
            assert sum(one.answer is None for one in answers) == 6
            tables.run()
            harness.tick()
            assert all(one.answer is not None for one in answers) and harness.broker.parts.topics.waiting_bytes == 0

    def test_an_administrator_is_answered_when_the_topic_is_on_disk(self, tmp_path: Path) -> None:
        tables = HeldWorker()
        with BrokerHarness(tmp_path, tables=tables) as harness:
            with pytest.raises(NoAnswer):
                create(harness, "T", 4, 4)
            tables.run()
            harness.restart(clean=False)
            assert "T" in harness.broker.parts.topics

    def test_a_change_whose_save_fails_is_reverted(self, harness: BrokerHarness) -> None:
        create(harness, "T", 4, 4)
        harness.disk.fail_call(1, OSError(errno.EIO, "broken"), [Call.REPLACE])
        assert create(harness, "T", 8, 8) == ResponseCode.SYSTEM_ERROR
        config = harness.broker.parts.topics.get("T")
        assert config is not None and config.read_queue_nums == 4

    def test_a_round_opens_a_limited_number_of_queues(self, harness: BrokerHarness) -> None:
        """Each new queue needs a folder and a file. Sends to one queue keep their order."""
        create(harness, "T", 100, 100)
        queues = harness.broker.parts.store.queues
        asked = [harness.submit(harness.send_command("T", b"%d" % i, queue_id=i % 100)) for i in range(300)]
        known = len(queues)
        while harness.broker.next_tick_ms() == 0 or not all(one.answer for one in asked):
            harness.tick()
            assert len(queues) - known <= OPENED_MAX
            known = len(queues)
        assert all(one.answer is not None and one.answer.code == 0 for one in asked)
        assert harness.bodies("T", 99) == [b"99", b"199", b"299"]

    def test_a_send_does_not_overtake_sends_that_wait_for_its_queue(self, harness: BrokerHarness) -> None:
        create(harness, "T", 100, 100)
        last = OPENED_MAX
        for queue_id in range(OPENED_MAX):
            harness.submit(harness.send_command("T", queue_id=queue_id))
        asked = [harness.submit(harness.send_command("T", b"%d" % i, queue_id=last)) for i in range(2)]
        for queue_id in range(last + 1, last + OPENED_MAX):
            harness.submit(harness.send_command("T", queue_id=queue_id))
        asked.append(harness.submit(harness.send_command("T", b"2", queue_id=last)))
        harness.tick()
        asked.append(harness.submit(harness.send_command("T", b"3", queue_id=last)))
        harness.settle()
        assert all(one.answer is not None and one.answer.code == 0 for one in asked)
        assert harness.bodies("T", last) == [b"0", b"1", b"2", b"3"]

    def test_a_send_waits_for_earlier_sends_to_its_queue(self, harness: BrokerHarness) -> None:
        """The commit of a transaction can open the queue before these sends."""
        create(harness, "T", 100, 100)
        for queue_id in range(OPENED_MAX):
            harness.submit(harness.send_command("T", queue_id=queue_id))
        first = harness.submit(harness.send_command("T", b"1", queue_id=50))
        harness.broker.parts.store.queues.row("T", 50)
        harness.broker.parts.fast_send = None
        second = harness.submit(harness.send_command("T", b"2", queue_id=50))
        harness.settle()
        assert first.answer is not None and second.answer is not None
        assert harness.bodies("T", 50) == [b"1", b"2"]

    def test_half_messages_open_no_queue(self, harness: BrokerHarness) -> None:
        create(harness, "T", 100, 100)
        harness.send("H", properties={props.TRAN_MSG: "true", props.PRODUCER_GROUP: "g"})  # opens the half queue
        half = {props.TRAN_MSG: "true", props.PRODUCER_GROUP: "g"}
        for i in range(OPENED_MAX):
            harness.submit(harness.send_command("T", queue_id=i, properties=half))
        asked = harness.submit(harness.send_command("T", queue_id=50))
        assert not len(harness.broker.parts.new_queues)  # before any tick
        harness.tick()
        assert asked.answer is not None and asked.answer.code == 0


class TestQueueCounts:
    @pytest.mark.parametrize("count", [-(1 << 31), -1, 0, QUEUES_MAX + 1, (1 << 31) - 1])
    def test_an_invalid_number_of_queues_is_rejected(self, harness: BrokerHarness, count: int) -> None:
        for read, write in ((count, 4), (4, count)):
            assert create(harness, "T", read, write) == ResponseCode.INVALID_PARAMETER
        assert harness.broker.parts.topics.get("T") is None

    @pytest.mark.parametrize("count", [1, QUEUES_MAX])
    def test_the_least_and_the_greatest_number_of_queues_are_valid(self, harness: BrokerHarness, count: int) -> None:
        assert create(harness, "T", count, count) == 0

    @pytest.mark.parametrize("count", [-1, 0])
    def test_a_send_creates_no_topic_without_queues(self, harness: BrokerHarness, count: int) -> None:
        assert harness.send("T", d=count).code == ResponseCode.INVALID_PARAMETER
        assert harness.broker.parts.topics.get("T") is None

    def test_numbers_of_queues_in_the_file_are_limited(self, harness: BrokerHarness) -> None:
        create(harness, "T", 77, 78)
        harness.stop()
        path = harness._folder / "config" / "topics.json"
        path.write_text(path.read_text().replace("77", "-3").replace("78", "2147483647"))
        harness.start()
        config = harness.broker.parts.topics.get("T")
        assert config is not None
        assert (config.read_queue_nums, config.write_queue_nums) == (0, QUEUES_MAX)


class TestArrays:
    """Arrays that follow single changes equal arrays that are built from all topics."""

    def found(self, arrays: TopicArrays, name: str) -> tuple[int, bool, list[int]] | None:
        raw = np.frombuffer(name.encode(), np.uint8)
        row = int(kernel.find_topic.py_func(arrays.slots, arrays.rows, arrays.names, raw, 0, len(raw)))
        if row < 0:
            return None
        _, _, count, first, sendable = arrays.rows[row].tolist()
        return count, bool(sendable), arrays.queue_rows[first : first + count].tolist()

    def test_arrays_follow_every_kind_of_change(self, harness: BrokerHarness) -> None:
        arrays = arrays_of(harness)
        arrays.refresh()
        rng = Random(5)
        names = [f"T{i}" for i in range(60)]
        with mock.patch.object(arrays, "_build", wraps=arrays._build) as builds:
            for step in range(300):
                name = rng.choice(names)
                if rng.random() < 0.2:
                    harness.ask_code(RequestCode.DELETE_TOPIC_IN_BROKER, topic=name)
                elif rng.random() < 0.5:
                    create(harness, name, rng.randrange(1, 9), rng.randrange(1, 9))
                else:
                    harness.send(name, queue_id=rng.randrange(3))
                if step % 7 == 0:
                    arrays.refresh()
            arrays.refresh()
            assert builds.call_count < 4
        fresh = arrays_of(harness)
        fresh.refresh()
        for name in [*names, *harness.broker.parts.topics.all()]:
            assert self.found(arrays, name) == self.found(fresh, name), name


def test_arrays_whose_rebuild_fails_stay_unchanged(harness: BrokerHarness) -> None:
    arrays = arrays_of(harness)
    arrays.refresh()
    before = arrays.names, arrays.rows, arrays.slots, arrays.queue_rows
    create(harness, "T", 4, 4)
    harness.broker.parts.topics.renew_version()  # so that all arrays are built again
    with mock.patch.object(np, "full", side_effect=MemoryError), pytest.raises(MemoryError):
        arrays.refresh()
    assert all(
        now is then
        for now, then in zip((arrays.names, arrays.rows, arrays.slots, arrays.queue_rows), before, strict=True)
    )
    arrays.refresh()
    assert len(arrays.rows) == len(harness.broker.parts.topics.all())
