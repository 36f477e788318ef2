"""Batches of a sink: each row is delivered once, whatever happens between its upload and its commit."""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from wheelmq.auth.policies import Action
from wheelmq.auth.rules import RULES
from wheelmq.broker import fast_batch
from wheelmq.broker.batches import batches as module
from wheelmq.broker.batches import layouts
from wheelmq.broker.batches.cursor import TopicChunk
from wheelmq.broker.handlers import batches as handlers
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.batch import BatchDecision, BatchPart, UploadedRow, encode_row
from wheelmq.formats.wire import bodies, headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import BatchCommitHeader, BatchLayoutHeader, BatchUploadHeader
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.stops import Died, Stops

JOB = "query"
KEY = props.encode({props.UNIQ_KEY: "k"})


def rows_of(numbers: range, prefix: str = "", **properties: str) -> list[UploadedRow]:
    return [
        UploadedRow(i % 2, f"{prefix}{i}".encode(), props.encode({props.UNIQ_KEY: f"key-{prefix}{i}", **properties}))
        for i in numbers
    ]


class Sink:
    """A sink as Spark drives it: tasks upload, and the driver commits."""

    def __init__(self, harness: BrokerHarness) -> None:
        self.harness = harness
        harness.send("T", b"creates the topic")

    def upload(
        self, part: int, attempt: int, rows: list[UploadedRow], *, batch: int = 0, topic: str = "T"
    ) -> BatchPart:
        """Upload rows in two chunks. Returns the part for the commit."""
        crc, middle = 0, len(rows) // 2
        for number, some in enumerate((rows[:middle], rows[middle:])):
            raw = b"".join(map(encode_row, some))
            answer = self.ask_upload(part, attempt, number, raw, batch=batch, topic=topic)
            assert answer.code == ResponseCode.SUCCESS, answer
            crc = zlib.crc32(raw, crc)
        return BatchPart(part=part, attempt=attempt, topic=topic, chunks=2, rows=len(rows), crc=crc)

    def ask_upload(
        self, part: int, attempt: int, number: int, raw: bytes, *, batch: int = 0, topic: str = "T", job: str = JOB
    ) -> Command:
        header = BatchUploadHeader(job=job, batch=batch, part=part, attempt=attempt, topic=topic, chunk=number)
        return self.harness.ask(Command(code=RequestCode.WMQ_BATCH_UPLOAD, ext=headers.write(header), body=raw))

    def commit(self, *parts: BatchPart, batch: int = 0, timeout_ms: int = 10_000) -> Command:
        """Commit a batch, and wait for the answer."""
        header = BatchCommitHeader(job=JOB, batch=batch, timeout_ms=timeout_ms)
        body = bodies.write(bodies.BatchParts(parts=list(parts)))
        asked = self.harness.submit(Command(code=RequestCode.WMQ_BATCH_COMMIT, ext=headers.write(header), body=body))
        self.harness.tick()
        self.harness.settle()
        while asked.answer is None:
            self.harness.advance_to_next()
        return asked.answer

    def ask_layout(self, topics: dict[str, dict[str, int]], *, batch: int = 0, job: str = JOB) -> Command:
        """Save the layout of a batch, or look it up without topics."""
        header = BatchLayoutHeader(job=job, batch=batch)
        body = bodies.write(bodies.BatchQueues(topics=topics))
        return self.harness.ask(Command(code=RequestCode.WMQ_BATCH_LAYOUT, ext=headers.write(header), body=body))

    def layout(self, batch: int = 0, job: str = JOB) -> dict[str, dict[str, int]]:
        return bodies.read(self.ask_layout({}, batch=batch, job=job).body, bodies.BatchQueues).topics

    def bodies(self) -> list[list[bytes]]:
        """Return the bodies of rows in each queue."""
        found = [self.harness.bodies("T", queue_id) for queue_id in (0, 1)]
        return [[body for body in queue if body != b"creates the topic"] for queue in found]

    def files(self) -> list[str]:
        folder = self.harness.broker.parts.paths.batches
        return sorted(f"{path.parent.name}/{path.name}" for path in folder.glob("*/*")) if folder.exists() else []


@pytest.fixture(params=[pytest.param(True, marks=pytest.mark.kernels, id="kernel"), pytest.param(False, id="plain")])
def sink(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Sink]:
    """A sink whose broker appends plain rows by the kernel, and one whose broker has the plain code alone."""
    with BrokerHarness(tmp_path) as harness:
        if not request.param:
            harness.broker.parts.batches.fast = None
        yield Sink(harness)


def expected(*numbers: range, prefix: str = "") -> list[list[bytes]]:
    return [[f"{prefix}{i}".encode() for some in numbers for i in some if i % 2 == queue] for queue in (0, 1)]


def test_a_commit_names_the_attempts_whose_rows_are_delivered(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path) as harness:
        sink = Sink(harness)
        sink.upload(0, 0, rows_of(range(5), "failed-"))
        parts = [sink.upload(0, 1, rows_of(range(600))), sink.upload(1, 0, rows_of(range(600, 610)))]
        harness.advance(2000)
        assert sink.bodies() == [[], []]
        answer = sink.commit(*parts)
        assert (answer.code, answer.ext["rows"]) == (ResponseCode.SUCCESS, "610")
        assert sink.bodies() == expected(range(610)) and sink.files() == []


def test_a_repeated_commit_has_no_effect(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path) as harness:
        sink = Sink(harness)
        part = sink.upload(0, 0, rows_of(range(10)))
        assert sink.commit(part).ext["rows"] == "10"
        for clean in (True, False):
            assert sink.commit(part).ext["rows"] == "10"
            harness.restart(clean=clean)
            again = sink.upload(0, 7, rows_of(range(10), "again-"))
            assert sink.commit(again).ext["rows"] == "10"
        assert sink.bodies() == expected(range(10)) and sink.files() == []


def test_delayed_rows_are_parked(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path) as harness:
        sink = Sink(harness)
        timers = rows_of(range(4), **{props.TIMER_DELIVER_MS: str(harness.now_ms + 3000)})
        levels = rows_of(range(4, 8), **{props.DELAY: "2"})
        assert sink.commit(sink.upload(0, 0, timers + levels)).code == ResponseCode.SUCCESS
        assert sink.bodies() == [[], []]
        harness.advance(3000)
        assert sink.bodies() == expected(range(4))
        harness.advance(5000)
        assert sink.bodies() == expected(range(8))


@pytest.mark.parametrize("loses", ["kill", "power"])
def test_a_restart_at_each_failpoint_neither_loses_nor_doubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loses: str
) -> None:
    monkeypatch.setattr(module, "SLICE_ROWS", 4)
    monkeypatch.setattr(fast_batch, "PIECE_ROWS", 1)
    passed = _run(tmp_path / "whole", None, loses)
    assert {"batch.saved", "batch.decided", "batch.marked", "batch.appended", "batch.removed"} <= set(passed)
    for i, name in enumerate(passed):
        if name.startswith("batch.") or name not in passed[:i]:
            _run(tmp_path / str(i), i, loses)


def _run(folder: Path, die_at: int | None, loses: str) -> list[str]:
    """Run two batches, and restart the broker at a failpoint. Returns the failpoints that the run passes.

    After a restart, Spark runs the last batch again, with other attempts.
    """
    with BrokerHarness(folder, seed=die_at or 0) as harness:
        sink = Sink(harness)
        harness.advance(1000)
        with Stops(die_at) as stops:
            for batch, numbers in enumerate((range(10), range(10, 20))):
                try:
                    answer = _commit_all(sink, batch, 0, numbers)
                except Died:
                    stops.disarm()
                    harness.crash() if loses == "kill" else harness.cut_power()
                    harness.start()
                    answer = _commit_all(sink, batch, 1, numbers)
                assert answer.ext["rows"] == "10", answer
        harness.advance(2000)
        assert sink.bodies() == expected(range(20)) and sink.files() == [], (die_at, stops.passed[-1])
        return stops.passed


def _commit_all(sink: Sink, batch: int, attempt: int, numbers: range) -> Command:
    first = sink.upload(0, attempt, rows_of(numbers[:6]), batch=batch)
    second = sink.upload(1, attempt, rows_of(numbers[6:]), batch=batch)
    return sink.commit(first, second, batch=batch)


class StopAtRow(Stops):
    """Ends the run after a number of rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows

    def reach(self, name: str) -> None:
        super().reach(name)
        if self.passed.count("batch.appended") == self._rows:
            raise Died(name)


class TestUploads:
    @pytest.mark.parametrize(
        ("rows", "options", "code", "text"),
        [
            ([UploadedRow(0, b"x", b"")], {}, ResponseCode.MESSAGE_ILLEGAL, "row 0: the property UNIQ_KEY is missing"),
            ([UploadedRow(9, b"x", KEY)], {}, ResponseCode.MESSAGE_ILLEGAL, "queue 9 does not exist: the topic has 4"),
            ([UploadedRow(0, b"", KEY)], {}, ResponseCode.MESSAGE_ILLEGAL, "a body of 0 bytes"),
            (
                [UploadedRow(0, bytes(2000), KEY)],
                {},
                ResponseCode.MESSAGE_ILLEGAL,
                "a body of 2000 bytes: it has 1 to 1000",
            ),
            (rows_of(range(1), delayInSeconds="5"), {}, ResponseCode.MESSAGE_ILLEGAL, "with delayInSeconds"),
            (rows_of(range(1), TIMER_DEL_UNIQKEY="k"), {}, ResponseCode.MESSAGE_ILLEGAL, "a cancel"),
            (rows_of(range(1), DELAY="x"), {}, ResponseCode.SYSTEM_ERROR, "DELAY is 'x'"),
            (rows_of(range(1)), {"topic": "Absent"}, ResponseCode.TOPIC_NOT_EXIST, "topic\\[Absent\\] not exist"),
            (rows_of(range(1)), {"topic": "../T"}, ResponseCode.INVALID_PARAMETER, "illegal characters"),
            (rows_of(range(1)), {"topic": "%RETRY%g"}, ResponseCode.NO_PERMISSION, "cannot be sent to %RETRY%g"),
            (rows_of(range(1)), {"part": -1}, ResponseCode.INVALID_PARAMETER, "out of range"),
            (rows_of(range(1)), {"job": "j" * 256}, ResponseCode.INVALID_PARAMETER, "a job has 1 to 255 characters"),
        ],
    )
    def test_rows_that_could_not_be_appended_are_rejected(
        self, tmp_path: Path, rows: list[UploadedRow], options: dict[str, Any], code: ResponseCode, text: str
    ) -> None:
        with BrokerHarness(tmp_path, body_bytes_max=1000) as harness:
            sink = Sink(harness)
            raw = b"".join(map(encode_row, rows))
            answer = sink.ask_upload(options.pop("part", 0), 0, 0, raw, **options)
            assert answer.code == code and re.search(text, answer.remark or ""), answer
            assert sink.files() == []

    def test_bytes_that_are_no_rows_are_rejected(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            sink = Sink(harness)
            whole = encode_row(rows_of(range(1))[0])
            many = b"".join(map(encode_row, rows_of(range(513))))
            assert "at most 512 rows" in (sink.ask_upload(0, 0, 0, many).remark or "")
            for raw in (whole[:5], whole[:-1], b"\xff" * 20):
                assert sink.ask_upload(0, 0, 0, raw).code == ResponseCode.INVALID_PARAMETER

    def test_uploads_without_a_commit_expire(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            sink = Sink(harness)
            sink.upload(0, 0, rows_of(range(4)))
            harness.advance(50 * 60_000, every_ms=60_000)
            part = sink.upload(1, 0, rows_of(range(4)))
            harness.advance(50 * 60_000, every_ms=60_000)
            assert len(sink.files()) == 4
            harness.restart()
            harness.advance(62 * 60_000, every_ms=60_000)
            assert sink.files() == []
            answer = sink.commit(part)
            assert answer.code == ResponseCode.INVALID_PARAMETER and "has no chunk 0 here" in (answer.remark or "")


class TestCommits:
    def test_a_commit_that_is_not_the_upload_is_rejected(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            sink = Sink(harness)
            part = sink.upload(0, 0, rows_of(range(4)))
            wrong = msgspec.structs.replace(part, crc=part.crc ^ 1)
            answer = sink.commit(wrong)
            assert answer.code == ResponseCode.INVALID_PARAMETER and "part 0, attempt 0, topic T has 4 rows" in (
                answer.remark or ""
            )
            for odd in (msgspec.structs.replace(part, topic="../T"), msgspec.structs.replace(part, chunks=-1)):
                assert sink.commit(odd).code == ResponseCode.INVALID_PARAMETER
            assert sink.commit(part, part).code == ResponseCode.INVALID_PARAMETER
            assert sink.commit(part).ext["rows"] == "4" and sink.bodies() == expected(range(4))

    @pytest.mark.parametrize("is_checked", [False, True])
    def test_a_batch_is_uploaded_again_after_a_rejection_that_was_not_read(
        self, tmp_path: Path, is_checked: bool
    ) -> None:
        with BrokerHarness(tmp_path) as harness:
            sink = Sink(harness)
            part = sink.upload(0, 0, rows_of(range(4)))
            wrong = msgspec.structs.replace(part, crc=part.crc ^ 1)
            harness.broker.parts.batches.commit(BatchDecision(job=JOB, batch=0, parts=(wrong,)))  # no answer is read
            if is_checked:
                harness.advance(1000)
            assert sink.commit(sink.upload(0, 1, rows_of(range(4)))).ext["rows"] == "4"
            assert sink.bodies() == expected(range(4)) and sink.files() == []

    def test_an_empty_batch_is_committed(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            assert Sink(harness).commit().ext["rows"] == "0"

    @pytest.mark.parametrize("flush_mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
    def test_a_commit_waits_for_no_interval_of_flushes(self, tmp_path: Path, flush_mode: str) -> None:
        with BrokerHarness(tmp_path, flush_mode=flush_mode, flush_interval_ms=60_000) as harness:
            sink = Sink(harness)
            harness.advance(1000)
            for batch in range(3):
                begun_ms = harness.now_ms
                assert sink.commit(sink.upload(0, 0, rows_of(range(6)), batch=batch), batch=batch).ext["rows"] == "6"
                assert harness.now_ms == begun_ms

    def test_a_commit_is_answered_at_its_timeout(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            sink = Sink(harness)
            part = sink.upload(0, 0, rows_of(range(600)))
            answer = sink.commit(part, timeout_ms=0)
            assert answer.code == ResponseCode.SYSTEM_BUSY and "of 600 rows are in the log" in (answer.remark or "")
            assert sink.commit(part).ext["rows"] == "600" and sink.bodies() == expected(range(600))

    def test_a_full_disk_delays_rows(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            harness.disk.gives_room_ahead = True
            sink = Sink(harness)
            rows = [UploadedRow(0, bytes([i]) * 30_000, props.encode({props.UNIQ_KEY: str(i)})) for i in range(80)]
            part = sink.upload(0, 0, rows)
            harness.disk.is_full = lambda path: path.parent.name == "commitlog"
            answer = sink.commit(part, timeout_ms=3000)
            assert answer.code == ResponseCode.SYSTEM_BUSY and 0 < int((answer.remark or "").split()[0]) < 80
            harness.disk.heal()
            harness.advance(5000)
            assert sink.commit(part).ext["rows"] == "80"
            assert harness.bodies("T")[1:] == [row.body for row in rows]

    def test_a_repeated_batch_completes_the_rows_without_the_uploads(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As on a slave that became the master: it has the log, and no uploads."""
        monkeypatch.setattr(module, "SLICE_ROWS", 4)
        monkeypatch.setattr(fast_batch, "PIECE_ROWS", 1)
        with BrokerHarness(tmp_path) as harness:
            sink = Sink(harness)
            part = sink.upload(0, 0, rows_of(range(10)))
            with pytest.raises(Died), StopAtRow(7):
                sink.commit(part)
            harness.crash()
            shutil.rmtree(tmp_path / "batches")
            harness.start()
            assert sum(map(len, sink.bodies())) == 7
            other = sink.commit(sink.upload(0, 1, rows_of(range(11))))
            assert other.code == ResponseCode.INVALID_PARAMETER and "gave other rows" in (other.remark or "")
            assert sink.commit(sink.upload(0, 2, rows_of(range(10)))).ext["rows"] == "10"
            assert sink.bodies() == expected(range(10))


class TestFailedSlices:
    """A slice is one put: its failure and its time are logged, and it is appended later."""

    def test_an_error_before_the_first_record_delays_a_slice(
        self, sink: Sink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        parts = sink.harness.broker.parts
        part = sink.upload(0, 0, rows_of(range(6)))
        with monkeypatch.context() as patched:
            patched.setattr(parts.store, "reserve", lambda *_, **named: 1 // 0)
            answer = sink.commit(part, timeout_ms=0)
        assert answer.code == ResponseCode.SYSTEM_BUSY and "0 of 6 rows" in (answer.remark or "")
        assert "the failed put: topic=T queueId=0 messages=6 bodyLength=6" in caplog.messages
        assert sink.commit(part).ext["rows"] == "6" and sink.bodies() == expected(range(6))

    @pytest.mark.parametrize(("kept", "text"), [(0.5, "have lost rows"), (0.49, "bytes remain|the row at byte")])
    def test_uploads_damaged_after_their_check_append_no_mark(self, tmp_path: Path, kept: float, text: str) -> None:
        with BrokerHarness(tmp_path) as harness:
            sink, parts = Sink(harness), harness.broker.parts
            part, chunks = sink.upload(0, 0, rows_of(range(8))), parts.batches._spool.chunks

            def damaged(decision: BatchDecision) -> Iterator[TopicChunk]:
                for topic, chunk in [(one.topic, one.chunk) for one in chunks(decision)]:
                    yield TopicChunk(topic, chunk._replace(rows=chunk.rows[: int(kept * len(chunk.rows))]))

            parts.batches._spool.chunks = damaged  # type: ignore[method-assign]
            answer = sink.commit(part, timeout_ms=2500)
            assert answer.code == ResponseCode.SYSTEM_BUSY and re.search(text, answer.remark or ""), answer
            assert parts.store.queues.end(names.BATCH_TOPIC, 0) == (1 if kept == 0.5 else 0)

    def test_a_slow_slice_is_logged(
        self, sink: Sink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        parts = sink.harness.broker.parts
        part, reserve, puts = sink.upload(0, 0, rows_of(range(6))), parts.store.reserve, parts.stats.put_times.puts
        before = puts.count

        def slow(*given: Any, **named: Any) -> None:
            sink.harness.clock.advance(600)
            reserve(*given, **named)

        monkeypatch.setattr(parts.store, "reserve", slow)
        assert sink.commit(part).ext["rows"] == "6" and puts.count == before + 1
        text = "[NOTIFYME]putMessage in lock cost time(ms)=600, bodyLength=6 AppendMessageResult=PUT_OK"
        assert text in caplog.messages

    def test_a_broker_that_takes_no_messages_appends_later(self, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
        parts = sink.harness.broker.parts
        part = sink.upload(0, 0, rows_of(range(6)))
        with monkeypatch.context() as patched:
            patched.setattr(parts.admission, "rejection", lambda: "the disk is 99 % full")
            answer = sink.commit(part, timeout_ms=0)
            assert answer.code == ResponseCode.SYSTEM_BUSY
            raw = b"".join(map(encode_row, rows_of(range(1))))
            assert "99 % full" in (sink.ask_upload(9, 0, 0, raw).remark or "")
        assert sink.commit(part).ext["rows"] == "6" and sink.bodies() == expected(range(6))


class TestLayouts:
    ONE = {"T": {"a": 4, "b": 4}}
    OTHER = {"T": {"a": 4}}

    def test_the_first_layout_of_a_batch_counts(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            sink = Sink(harness)
            assert sink.layout() == {}
            for topics in (self.ONE, self.OTHER):
                answer = sink.ask_layout(topics)
                assert answer.code == ResponseCode.SUCCESS and "rows" not in answer.ext
                assert bodies.read(answer.body, bodies.BatchQueues).topics == self.ONE
            assert sink.layout() == self.ONE and sink.layout(batch=1) == {} == sink.layout(job="other")

    @pytest.mark.parametrize("loses", ["nothing", "kill", "power"])
    def test_a_layout_survives_a_restart(self, tmp_path: Path, loses: str) -> None:
        with BrokerHarness(tmp_path) as harness:
            sink = Sink(harness)
            harness.advance(1000)
            sink.ask_layout(self.ONE)
            if loses == "nothing":
                harness.restart()
            else:
                harness.crash() if loses == "kill" else harness.cut_power()
                harness.start()
            assert sink.layout() == self.ONE

    def test_a_layout_replaces_that_of_an_earlier_batch(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            sink = Sink(harness)
            sink.ask_layout(self.ONE)
            sink.ask_layout(self.OTHER, batch=1)
            assert sink.layout(batch=1) == self.OTHER and sink.layout() == {}
            answer = sink.ask_layout(self.ONE)
            assert answer.code == ResponseCode.INVALID_PARAMETER and "is at batch 1 here" in (answer.remark or "")
            assert sink.layout(batch=1) == self.OTHER

    def test_a_repeated_layout_returns_the_rows_of_the_decision(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            sink = Sink(harness)
            sink.ask_layout(self.ONE)
            assert "rows" not in sink.ask_layout(self.ONE).ext
            sink.commit(sink.upload(0, 0, rows_of(range(6))))
            assert sink.ask_layout(self.ONE).ext["rows"] == "6"
            harness.restart()
            assert sink.ask_layout(self.ONE).ext["rows"] == "6"

    def test_the_oldest_jobs_are_forgotten(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(layouts, "LAYOUTS_MAX", 2)
        with BrokerHarness(tmp_path) as harness:
            sink = Sink(harness)
            for job, batch in (("a", 0), ("b", 0), ("a", 1), ("c", 0)):
                sink.ask_layout(self.ONE, job=job, batch=batch)
            harness.restart()
            assert [sink.layout(1, "a"), sink.layout(0, "b"), sink.layout(0, "c")] == [self.ONE, {}, self.ONE]

    def test_a_file_that_cannot_be_read_is_no_layout(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path) as harness:
            sink = Sink(harness)
            sink.ask_layout(self.ONE)
            (file,) = (tmp_path / "batchlayouts").iterdir()
            file.write_bytes(b"{")
            harness.restart()
            assert sink.layout() == {}

    def test_bad_layouts_are_rejected(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(handlers, "LAYOUT_BYTES_MAX", 100)
        with BrokerHarness(tmp_path) as harness:
            sink = Sink(harness)
            for topics in ({"../T": {"a": 1}}, {"T": {"a" * 100: 1}}):
                assert sink.ask_layout(topics).code == ResponseCode.INVALID_PARAMETER
            assert sink.layout() == {}


def test_a_commit_needs_the_right_to_send_to_each_topic() -> None:
    parts = [BatchPart(part=i, attempt=0, topic=topic, chunks=1, rows=1, crc=0) for i, topic in enumerate("ABA")]
    command = Command(code=RequestCode.WMQ_BATCH_COMMIT, body=bodies.write(bodies.BatchParts(parts=parts)))
    found = RULES[RequestCode.WMQ_BATCH_COMMIT].needs[0].rights(command, cast(Any, None))
    assert [(right.resource.name, set(right.actions)) for right in found] == [("A", {Action.PUB}), ("B", {Action.PUB})]
