"""The kernels that append rows of batches write the same bytes as the plain code, and accept the same uploads."""

from __future__ import annotations

import itertools
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.twin.frames import property_blocks, send_frame
from tests.twin.twins import Twins
from wheelmq.broker import fast_batch
from wheelmq.broker.batches import batches as module
from wheelmq.broker.batches.marks import find_progress
from wheelmq.formats.disk.batch import CHUNK_ROWS_MAX, BatchId, BatchPart, UploadedRow, encode_row
from wheelmq.formats.wire import bodies, frame, headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import BatchCommitHeader, BatchUploadHeader

TOPICS = ("Alpha", "Beta")
UNUSUAL = [
    {"DELAY": "1"},
    {"TIMER_DELAY_MS": "50"},
    {"TIMER_DELIVER_MS": "1"},
    {"TAGS": "é"},
    {"REAL_QID": "7"},
    {"MSG_REGION": "mine"},
    {"TIMER_OUT_MS": "1"},
    {"DELAY": "0"},
]
numbers = itertools.count()


def row(queue_id: int, body: bytes, **properties: str) -> UploadedRow:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return UploadedRow(queue_id, body, text.encode())


@st.composite
def good_rows(draw: st.DrawFn) -> UploadedRow:
    """A row that a broker accepts."""
    names = st.sampled_from(["TAGS", "KEYS", "WAIT", "place", "colour"])
    values = st.sampled_from(["A", "a b", "x" * 300, "a\x01b", "true"])
    properties = {"UNIQ_KEY": f"{next(numbers):032X}"} | draw(st.dictionaries(names, values, max_size=4))
    if draw(st.integers(0, 60)) == 0:
        properties |= draw(st.sampled_from(UNUSUAL))
    found = dict(draw(st.permutations(list(properties.items()))))
    made = row(draw(st.integers(0, 3)), draw(st.binary(min_size=1, max_size=400)), **found)
    is_open = draw(st.integers(0, 5)) == 0
    return made._replace(properties=made.properties[:-1]) if is_open else made


any_rows = st.builds(
    UploadedRow,
    st.sampled_from([0, 1, 3, 4, -1]),
    st.binary(max_size=50),
    property_blocks().map(lambda text: text.encode("utf-8", "replace")),
)


class Sink:
    """Sends the requests of a sink to both brokers."""

    def __init__(self, twins: Twins) -> None:
        self.twins = twins
        self.batch = next(numbers)
        twins.receive(b"".join(send_frame(topic, "") for topic in TOPICS))
        self.parts: dict[tuple[int, str], BatchPart] = {}

    def upload(self, part: int, topic: str, raw: bytes, rows: int) -> int:
        """Upload the next chunk of a part. Returns the code of the answer."""
        key = part, topic
        known = self.parts.get(key, BatchPart(part=part, attempt=0, topic=topic, chunks=0, rows=0, crc=0))
        chunk = known.chunks
        header = BatchUploadHeader(job="j", batch=self.batch, part=part, attempt=0, topic=topic, chunk=chunk)
        self.ask(Command(code=RequestCode.WMQ_BATCH_UPLOAD, ext=headers.write(header), body=raw))
        (code,) = self.twins.codes
        if code == ResponseCode.SUCCESS:
            self.parts[key] = BatchPart(
                part=part,
                attempt=0,
                topic=topic,
                chunks=known.chunks + 1,
                rows=known.rows + rows,
                crc=zlib.crc32(raw, known.crc),
            )
        return code

    def upload_rows(self, part: int, topic: str, rows: list[UploadedRow]) -> int:
        return self.upload(part, topic, b"".join(map(encode_row, rows)), len(rows))

    def commit(self) -> None:
        """Commit the batch, and let both brokers append its rows."""
        header = BatchCommitHeader(job="j", batch=self.batch, timeout_ms=1000)
        body = bodies.write(bodies.BatchParts(parts=list(self.parts.values())))
        self.ask(Command(code=RequestCode.WMQ_BATCH_COMMIT, ext=headers.write(header), body=body))
        self.twins.advance(1)
        kernel, plain = (list(broker.parts.store.queues) for broker in self.twins.brokers)
        for one, other in zip(kernel, plain, strict=True):
            units = [[unit for piece in queue.chunks() for unit in piece.tolist()] for queue in (one, other)]
            assert units[0] == units[1] and len(units[0]) == one.end - one.start

    def ask(self, command: Command) -> None:
        self.twins.receive(frame.encode(command))

    @property
    def fast(self) -> fast_batch.FastBatch:
        found = self.twins.brokers[0].parts.batches.fast
        assert found is not None
        return found

    def stored(self) -> int:
        """Return the messages of all queues of the topics, less those that created them."""
        queues = self.twins.brokers[0].parts.store.queues
        return sum(queues.end(topic, i) for topic in TOPICS for i in range(4)) - len(TOPICS)


chunks = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(TOPICS), st.lists(good_rows(), min_size=1, max_size=12)),
    min_size=1,
    max_size=6,
)


@given(chunks=chunks)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_kernel_and_plain_code_append_rows_alike(
    twins: Twins, monkeypatch: pytest.MonkeyPatch, chunks: list[tuple[int, str, list[UploadedRow]]]
) -> None:
    monkeypatch.setattr(module, "SLICE_ROWS", 7)
    monkeypatch.setattr(module, "SLICE_BYTES", 6000)
    sink = Sink(twins)
    for part, topic, rows in chunks:
        assert sink.upload_rows(part, topic, rows) == ResponseCode.SUCCESS
    sink.commit()


@given(rows=st.lists(any_rows | good_rows(), max_size=4), cut=st.integers(-3, 0))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_kernel_and_plain_code_accept_the_same_uploads(twins: Twins, rows: list[UploadedRow], cut: int) -> None:
    sink = Sink(twins)
    raw = b"".join(map(encode_row, rows))
    whole = rows if cut == 0 else rows[:-1]
    if sink.upload(0, "Alpha", raw[: len(raw) + cut], len(whole)) == ResponseCode.SUCCESS:
        sink.commit()


def plain_rows(count: int, **more: str) -> list[UploadedRow]:
    return [row(i % 4, bytes(50), UNIQ_KEY=f"{next(numbers):032X}", **more) for i in range(count)]


def test_the_kernel_appends_rows_of_several_chunks_and_topics(twins: Twins) -> None:
    """No such row falls back to the plain code, also at the ends of log files."""
    sink = Sink(twins)
    before, stored = sink.fast.rows, sink.stored()
    for part in range(4):
        for topic in TOPICS:
            sink.upload_rows(part, topic, plain_rows(200, place="a/0/1"))
    sink.commit()
    assert sink.fast.rows == before + 1600 and sink.stored() == stored + 1600
    kernel = twins.brokers[0].parts.store.log
    assert kernel.end > 2 * kernel.files.file_bytes


@pytest.mark.parametrize("unusual", UNUSUAL)
def test_the_plain_code_appends_only_the_slice_with_an_unusual_row(
    twins: Twins, monkeypatch: pytest.MonkeyPatch, unusual: dict[str, str]
) -> None:
    monkeypatch.setattr(module, "SLICE_ROWS", 10)
    sink = Sink(twins)
    before = sink.fast.rows
    assert sink.upload_rows(0, "Alpha", plain_rows(15) + plain_rows(1, **unusual) + plain_rows(14)) == 0
    sink.commit()
    assert sink.fast.rows == before + 20
    twins.advance(2000)


def test_a_slice_makes_the_journal_longer(twins: Twins) -> None:
    sink = Sink(twins)
    for broker in twins.brokers:
        broker.parts.store.journal.table = broker.parts.store.journal.table[:50].copy()
    sink.upload_rows(0, "Alpha", plain_rows(200))
    sink.commit()
    assert sink.fast.rows == 200 and sink.stored() == 200


def test_a_chunk_with_too_many_rows_is_for_the_plain_code(twins: Twins) -> None:
    sink = Sink(twins)
    assert sink.upload_rows(0, "Alpha", plain_rows(CHUNK_ROWS_MAX + 1)) == ResponseCode.MESSAGE_ILLEGAL
    assert sink.upload_rows(0, "Alpha", plain_rows(CHUNK_ROWS_MAX)) == ResponseCode.SUCCESS


def test_rows_without_kernels_are_for_the_plain_code(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink(twins)
    monkeypatch.setattr(fast_batch.jit, "available", lambda: False)
    sink.upload_rows(0, "Alpha", plain_rows(20))
    sink.commit()
    assert sink.fast.rows == 0 and sink.stored() == 20


def test_the_marks_of_both_paths_have_the_same_progress(twins: Twins) -> None:
    """The recovery finds all rows that the kernel appended."""
    sink = Sink(twins)
    sink.upload_rows(0, "Beta", plain_rows(30))
    sink.commit()
    found = [find_progress(broker.parts.store, BatchId("j", sink.batch)) for broker in twins.brokers]
    assert found[0] == found[1] and found[0] is not None and found[0][:2] == (30, 30)
