"""The kernels that serve sends and release messages write the same bytes as the plain code."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.twin.frames import batch_body, batches, frames, streams
from wheelmq.broker.broker import Broker
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.origin import origin_text, timer_origin
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.names import RETRY_PREFIX, SCHEDULE_TOPIC
from wheelmq.formats.units import Millis
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command, FrameError
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness

START_MS = 1_700_000_000_000


class CountedIds:
    """Unique ids that are the same in two brokers."""

    def __init__(self) -> None:
        self._counter = itertools.count()

    def next(self) -> str:
        return f"{next(self._counter):032X}"


class Peer:
    """A connection that keeps the bytes sent to it."""

    def __init__(self) -> None:
        from wheelmq.formats.disk.message import Host

        self.peer = Host(b"\x7f\0\0\1", 40_000)
        self.is_open = True
        self.is_full = self.must_wait = False
        self.sends = True
        self.waiting_since: float | None = None
        self.sent = b""

    def send(self, frame: bytes) -> None:
        self.sent += frame

    def close(self) -> None:
        self.is_open = False


class Twins:
    """Two brokers with the same input, one with kernels and one without."""

    def __init__(self, folder: Path, **chosen: object) -> None:
        self.harnesses = []
        for name in ("kernel", "plain"):
            harness = BrokerHarness(folder / name, clock=ManualClock(START_MS), **chosen)
            harness.broker.parts.unique_ids = CountedIds()  # type: ignore[assignment]
            self.harnesses.append(harness)
        kernel, plain = self.brokers
        assert kernel.parts.fast_send is not None
        plain.parts.fast_send = None
        plain.parts.releaser._bulk = None
        self._peers = (Peer(), Peer())

    @property
    def brokers(self) -> tuple[Broker, Broker]:
        kernel, plain = (harness.broker for harness in self.harnesses)
        return kernel, plain

    @property
    def sent(self) -> bytes:
        """All bytes answered to the last stream."""
        return self._peers[0].sent

    @property
    def codes(self) -> list[int]:
        """The codes of the answers to the last stream."""
        found, at, sent = [], 0, self.sent
        while (stop := frame.frame_end(sent, at, len(sent))) is not None:
            found.append(frame.decode(sent, at, stop).code)
            at = stop
        return found

    def receive(self, stream: bytes) -> None:
        outcomes = []
        self._peers = (Peer(), Peer())
        for broker, peer in zip(self.brokers, self._peers, strict=True):
            buffer = bytearray(stream)
            try:
                outcome: object = broker.receive(peer, memoryview(buffer), len(buffer))  # type: ignore[arg-type]
            except FrameError as error:
                outcome = str(error)
            outcomes.append(outcome)
        assert outcomes[0] == outcomes[1]
        self.compare()
        for broker in self.brokers:
            broker.tick()
        assert self._peers[0].sent == self._peers[1].sent

    def compare(self) -> None:
        """Check that log, journal, next queue offsets and slot counts are the same."""
        kernel, plain = (broker.parts.store for broker in self.brokers)
        assert kernel.log.end == plain.log.end
        assert np.array_equal(kernel.journal.rows(), plain.journal.rows())
        assert list(kernel.queues._rows) == list(plain.queues._rows)
        assert np.array_equal(kernel.queues.next_offset, plain.queues.next_offset)
        counted = [broker.parts.timer.congestion.table for broker in self.brokers]
        assert np.array_equal(*counted)
        if kernel.log.end:
            for (_, a, at, stop), (_, b, _, _) in zip(
                kernel.log.files.pieces(kernel.log.start, kernel.log.end),
                plain.log.files.pieces(plain.log.start, plain.log.end),
                strict=True,
            ):
                assert bytes(a.view[at:stop]) == bytes(b.view[at:stop])

    def advance(self, by_ms: int) -> None:
        for harness in self.harnesses:
            harness.clock.advance(by_ms)
        for _ in range(50):
            for broker in self.brokers:
                broker.tick()
        self.compare()

    def close(self) -> None:
        for harness in self.harnesses:
            harness.crash()


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def twins(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Twins]:
    pair = Twins(tmp_path, flush_mode=request.param, log_file_bytes=1 << 17)
    yield pair
    pair.close()


@given(stream=streams())
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_kernel_and_plain_code_serve_sends_alike(twins: Twins, stream: bytes) -> None:
    twins.receive(stream)


@given(stream=st.lists(batches() | frames(), min_size=1, max_size=6))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_kernel_and_plain_code_serve_batches_alike(twins: Twins, stream: list[bytes]) -> None:
    twins.receive(_frame("Alpha", "") + b"".join(stream))


KEY, WAIT = "UNIQ_KEY\x01K\x02", "WAIT\x01true\x02"


@pytest.mark.parametrize("shared", [KEY + WAIT, WAIT + KEY[:-1], WAIT])
@pytest.mark.parametrize("is_binary", [False, True])
def test_the_kernel_serves_batches(twins: Twins, shared: str, is_binary: bool) -> None:
    """No such batch falls back to the plain code."""
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(_frame("Alpha", ""))
    served = kernel.parts.fast_send.served
    twins.receive(_batch(32, shared, is_binary=is_binary) * 2)
    assert kernel.parts.fast_send.served == served + 2
    assert twins.codes == [ResponseCode.SUCCESS] * 2
    assert kernel.parts.store.queues.end("Alpha", 1) == 65


@pytest.mark.parametrize("shared", [KEY, KEY + "WAIT\x01false\x02"])
def test_plain_code_serves_batches_without_wait_under_sync_flush(twins: Twins, shared: str) -> None:
    """With SYNC_FLUSH, the kernel serves a batch only if the batch says that its answer may wait for the disk."""
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(_frame("Alpha", ""))
    served = kernel.parts.fast_send.served
    twins.receive(_batch(3, shared))
    assert kernel.parts.fast_send.served == served + (not kernel.parts.flush.is_sync)


def test_a_full_answer_buffer_is_sent_before_the_next_batch(twins: Twins) -> None:
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(_frame("Alpha", ""))
    kernel.parts.fast_send._out = kernel.parts.fast_send._out[:4096]
    served = kernel.parts.fast_send.served
    twins.receive(_batch(20, KEY + WAIT) * 5 + _batch(100, KEY + WAIT) + _batch(20, KEY + WAIT))
    assert kernel.parts.fast_send.served == served + 6  # the answer to 100 messages is larger than the buffer
    assert twins.codes == [ResponseCode.SUCCESS] * 7


def test_a_batch_moves_whole_to_the_next_log_file(twins: Twins) -> None:
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(_frame("Alpha", ""))
    served = kernel.parts.fast_send.served
    for count in range(30, 60):
        twins.receive(_batch(count, KEY + WAIT))
    assert kernel.parts.store.log.end > 2 * kernel.parts.store.log.files.file_bytes
    assert kernel.parts.fast_send.served > served + 25
    assert twins.codes == [ResponseCode.SUCCESS]


def test_plain_code_serves_a_batch_that_exceeds_the_journal(twins: Twins) -> None:
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(_frame("Alpha", ""))
    kernel.parts.store.journal.table = kernel.parts.store.journal.table[:50]
    served = kernel.parts.fast_send.served
    twins.receive(_batch(30, KEY + WAIT) * 2)
    assert kernel.parts.fast_send.served == served + 1
    assert twins.codes == [ResponseCode.SUCCESS] * 2


@pytest.mark.parametrize("last", [b"DELAY\x011\x02", b"k\x01\0\x02", b"TIMER_DELAY_MS\x0150\x02", b"k\x01\xc3\xa9\x02"])
def test_plain_code_serves_a_batch_with_one_unusual_message(twins: Twins, last: bytes) -> None:
    """The kernel writes nothing of a batch if one of its messages, even the last, is for the plain code."""
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(_frame("Alpha", ""))
    served, end = kernel.parts.fast_send.served, kernel.parts.store.log.end
    twins.receive(_batch(9, KEY + WAIT, last))
    assert kernel.parts.fast_send.served == served
    view = kernel.parts.store.log.files.file_at(end).view
    assert (kernel.parts.store.log.end == end) == (b"\0" in last)
    if kernel.parts.store.log.end == end:
        assert not any(view[end : end + 4096])


@given(stream=streams())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_kernel_and_plain_code_release_messages_alike(twins: Twins, stream: bytes) -> None:
    twins.receive(stream)
    twins.advance(1700)
    twins.advance(2000)


PRODUCERS = (
    "TAGS\\u0001{}\\u0002own\\u0001{}\\u0002",
    "TAGS\\u0001{}\\u0002KEY\\u0001{}\\u0002",
    "own\\u0001{}\\u0002TAGS\\u0001{}\\u0002",
    "own\\u0001{}\\u0002a longer name\\u0001{}\\u0002",
)
"""Templates of properties. Messages of one producer share a layout: most of their properties have one length."""


@given(
    sends=st.lists(
        st.tuples(st.sampled_from(PRODUCERS), st.sampled_from(["aaa", "bbb", "c=c", "é", "a\\u0001b"]), st.booleans()),
        min_size=10,
        max_size=60,
    )
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_kernel_and_plain_code_release_few_layouts_alike(twins: Twins, sends: list[tuple[str, str, bool]]) -> None:
    twins.receive(_frame("Alpha", ""))
    stream = [
        _frame("Alpha", "TIMER_DELAY_MS\\u0001500\\u0002" + producer.format(value, "xyz" if is_short else "wxyz"))
        for producer, value, is_short in sends
    ]
    twins.receive(b"".join(stream))
    kernel, _ = twins.brokers
    released = kernel.parts.releaser.counts["released"]
    twins.advance(500)
    assert kernel.parts.releaser.counts["released"] == released + len(sends)


@given(limit=st.integers(0, 4), sends=st.lists(st.sampled_from(["50", "1500", "2500", "70000", "140000"]), max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_kernel_and_plain_code_reject_sends_to_full_slots_alike(
    tmp_path_factory: pytest.TempPathFactory, limit: int, sends: list[str]
) -> None:
    twins = Twins(tmp_path_factory.mktemp("twins"), timer_congest_num_each_slot=limit)
    try:
        twins.receive(_frame("Alpha", ""))
        stream = b"".join(_frame("Alpha", f"TIMER_DELAY_MS\\u0001{delay_ms}\\u0002") for delay_ms in sends)
        twins.receive(stream)
        twins.advance(1600)
        twins.receive(stream)
    finally:
        twins.close()


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ("TIMER_DELAY_MS\\u00015000\\u0002", ResponseCode.SYSTEM_ERROR),
        ("TIMER_DELAY_MS\\u00010\\u0002", ResponseCode.SYSTEM_ERROR),
        ("TIMER_DELAY_SEC\\u0001-1\\u0002", ResponseCode.SYSTEM_ERROR),
        ("TIMER_DELIVER_MS\\u00015\\u0002", ResponseCode.SYSTEM_ERROR),
        ("TIMER_DELIVER_MS\\u0001soon\\u0002", ResponseCode.SYSTEM_ERROR),
        ("TIMER_DELIVER_MS\\u00015\\u0002TIMER_DEL_UNIQKEY\\u0001T+K\\u0002", ResponseCode.SYSTEM_ERROR),
        ("TIMER_DELIVER_MS\\u00015\\u0002TIMER_OUT_MS\\u00011\\u0002", ResponseCode.SUCCESS),
        ("TIMER_DELIVER_MS\\u00015\\u0002DELAY\\u00011\\u0002", ResponseCode.SUCCESS),
        ("TAGS\\u0001A\\u0002", ResponseCode.SUCCESS),
    ],
)
def test_kernel_and_plain_code_reject_disabled_timers_alike(tmp_path: Path, asked: str, code: ResponseCode) -> None:
    """A send with a due time is rejected before its time is parsed (RocketMQ: HookUtils.handleScheduleMessage)."""
    twins = Twins(tmp_path, timer_wheel_enable=False)
    try:
        twins.receive(_frame("Alpha", ""))
        twins.receive(_frame("Alpha", asked))
        sent = twins.sent
        answer = frame.decode(sent, 0, len(sent))
        assert answer.code == code
        if code != ResponseCode.SUCCESS:
            assert answer.remark == "accurate timer message is not enabled, timerWheelEnable is false"
    finally:
        twins.close()


@pytest.mark.parametrize("is_binary", [False, True])
def test_the_kernel_serves_plain_sends_and_timers(twins: Twins, is_binary: bool) -> None:
    """No such send falls back to the plain code."""
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(_frame("Alpha", ""))  # the plain code creates the topic
    served = kernel.parts.fast_send.served
    for properties in (
        "",
        "TAGS\\u0001TagA\\u0002",
        "TIMER_DELAY_MS\\u000150\\u0002",
        "TIMER_DELIVER_MS\\u00011700000009000\\u0002",
    ):
        twins.receive(_frame("Alpha", properties, is_binary=is_binary) * 3)
    assert kernel.parts.fast_send.served == served + 12
    released = kernel.parts.releaser.counts["released"]
    twins.advance(60)
    assert kernel.parts.releaser.counts["released"] == released + 3


@pytest.mark.parametrize("kind", ["JSON", "binary", "batch"])
def test_the_kernel_enforces_the_send_limit_of_a_round(tmp_path: Path, kind: str) -> None:
    """A batch counts as one send, as in the queue of a thread pool."""
    twins = Twins(tmp_path, send_thread_pool_queue_capacity=5)
    try:
        kernel, _ = twins.brokers
        assert kernel.parts.fast_send is not None
        twins.receive(_frame("Alpha", ""))
        served = kernel.parts.fast_send.served
        one = _batch(3, KEY + WAIT) if kind == "batch" else _frame("Alpha", "", is_binary=kind == "binary")
        twins.receive(one * 8)
        assert kernel.parts.fast_send.served == served + 5
        assert twins.codes == [ResponseCode.SUCCESS] * 5 + [ResponseCode.SYSTEM_BUSY] * 3
    finally:
        twins.close()


def test_every_send_passes_the_hooks(twins: Twins) -> None:
    seen: list[str] = []

    def authority(address: str, group: str, topic: str) -> str | None:
        seen.append(topic)
        return None

    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(_frame("Alpha", ""))
    for broker in twins.brokers:
        broker.parts.hooks.register_topic_authority(authority)
    served = kernel.parts.fast_send.served
    twins.receive(_frame("Alpha", "") * 3 + _batch(2, KEY + WAIT))
    assert kernel.parts.fast_send.served == served and seen == ["Alpha"] * 8


@pytest.mark.parametrize(
    "key", ["", "UNIQ_KEY\x01\x02", f"UNIQ_KEY\x01{'k' * 129}\x02", f"UNIQ_KEY\x01{'k' * 5000}\x02"]
)
def test_plain_code_serves_sends_with_a_missing_or_long_key(twins: Twins, key: str) -> None:
    """The plain code serves a send with no unique key or a long one, also if the answer waits for the disk."""
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(_binary_frame("Alpha", f"{KEY}{WAIT}"))
    served = kernel.parts.fast_send.served
    twins.receive(_binary_frame("Alpha", f"{key}{WAIT}"))
    assert kernel.parts.fast_send.served == served


@pytest.mark.parametrize("text", ['q"q', "back\\slash", "TAGS\x01a\x07\x02", "k\x01é\x02", ""])
def test_plain_code_serves_unusual_properties_of_a_binary_header(twins: Twins, text: str) -> None:
    """The plain code serves properties that an answer would have to escape."""
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(_frame("Alpha", "", is_binary=True))
    served = kernel.parts.fast_send.served
    twins.receive(_binary_frame("Alpha", f"UNIQ_KEY\x01{text}\x02{text}"))
    assert kernel.parts.fast_send.served == served


def test_the_kernel_releases_messages_of_blocks(twins: Twins) -> None:
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(_frame("Alpha", ""))
    served = kernel.parts.fast_send.served
    for _ in range(3):
        twins.receive(_frame("Alpha", "delayInSeconds\\u00011\\u0002TAGS\\u0001TagA\\u0002"))
    assert kernel.parts.fast_send.served == served
    with mock.patch.object(kernel.parts.releaser, "_append_one", side_effect=AssertionError("left to the plain code")):
        twins.advance(1000)
    assert kernel.parts.releaser.counts["released"] == 3


PAIRS = {
    "TAGS": ["TagA", "x=y"],
    "own": ["v", "a longer value"],
    "TIMER_ENQUEUE_MS": ["1", "1700000000123", str((1 << 63) - 1)],
    "TIMER_DEQUEUE_MS": ["2", "1700000000456"],
    "TIMER_ROLL_TIMES": ["1", "12"],
    "TIMER_DELAY_LEVEL": ["4"],
    "DELAY": ["2"],
    "TIMER_OUT_MS": ["1699999999000"],
}
"""Properties that a parked record may have in any order, with values of several lengths."""


@st.composite
def again_parked(draw: st.DrawFn) -> tuple[str, list[tuple[str, str]], bool, bool]:
    """The topic and properties of a record parked again, and whether it has an origin and a final separator."""
    names = draw(st.permutations(sorted(PAIRS)))[: draw(st.integers(0, len(PAIRS)))]
    pairs = [(name, draw(st.sampled_from(PAIRS[name]))) for name in names]
    topic = draw(st.sampled_from([TIMER_TOPIC, TIMER_TOPIC, SCHEDULE_TOPIC]))
    real = [("REAL_TOPIC", "Alpha"), ("REAL_QID", "1")]
    at = draw(st.integers(0, len(pairs)))
    due = [("__WMQ_DUE", f"{START_MS + 300:013d}")]
    return topic, pairs[:at] + real + due + pairs[at:], draw(st.booleans()), draw(st.booleans())


@given(parked=st.lists(again_parked(), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_kernel_and_plain_code_release_records_parked_again_alike(
    tmp_path_factory: pytest.TempPathFactory, parked: list[tuple[str, list[tuple[str, str]], bool, bool]]
) -> None:
    """Records of rolled and moved messages have an origin, a count of rolls, and times of an earlier release."""
    twins = Twins(tmp_path_factory.mktemp("twins"), log_file_bytes=1 << 17)
    try:
        twins.receive(_frame("Alpha", ""))
        for topic, pairs, has_origin, has_end in parked:
            _park(twins, topic, pairs, has_origin=has_origin, has_end=has_end)
        twins.advance(400)
        kernel, plain = twins.brokers
        assert kernel.parts.releaser.counts == plain.parts.releaser.counts
        assert kernel.parts.releaser.counts["released"] == len(parked)
    finally:
        twins.close()


@pytest.mark.parametrize("topic", [TIMER_TOPIC, SCHEDULE_TOPIC])
def test_the_kernel_releases_records_parked_again(twins: Twins, topic: str) -> None:
    """None of them falls back to the plain code."""
    kernel, _ = twins.brokers
    twins.receive(_frame("Alpha", ""))
    again = [("TIMER_ENQUEUE_MS", "1700000000123"), ("TIMER_ROLL_TIMES", "1"), ("TIMER_DEQUEUE_MS", "1700000000456")]
    due = [("REAL_TOPIC", "Alpha"), ("REAL_QID", "1"), ("__WMQ_DUE", f"{START_MS + 300:013d}")]
    for _ in range(5):
        _park(twins, topic, [("TAGS", "A"), *due, *again], has_origin=True, has_end=True)
    with mock.patch.object(kernel.parts.releaser, "_append_one", side_effect=AssertionError("left to the plain code")):
        twins.advance(400)
    assert kernel.parts.releaser.counts["released"] == 5


@pytest.mark.parametrize("kind", [{"TIMER_DELAY_MS": "300"}, {"DELAY": "1"}, {"delayInSeconds": "1"}])
@pytest.mark.parametrize("topic_bytes", [127, 128, 192, 255])
def test_records_of_long_topics_are_released_alike(twins: Twins, kind: dict[str, str], topic_bytes: int) -> None:
    """A topic of more than 127 bytes has a record of another form, and needs more room: the plain code stores it."""
    topic = RETRY_PREFIX + "g" * (topic_bytes - len(RETRY_PREFIX))
    kernel, _ = twins.brokers
    twins.receive(_frame(topic, ""))
    with mock.patch.object(kernel.parts.releaser, "_append_one", wraps=kernel.parts.releaser._append_one) as plain:
        for _ in range(3):
            twins.receive(_frame(topic, "".join(f"{name}\\u0001{value}\\u0002" for name, value in kind.items())))
        twins.advance(1500)
    assert kernel.parts.releaser.counts["released"] == 3
    assert plain.call_count == (0 if topic_bytes == 127 else 3)


def _park(twins: Twins, topic: str, pairs: list[tuple[str, str]], *, has_origin: bool, has_end: bool) -> None:
    """Append a parked record to both brokers. Without `has_end` it lacks the final separator, as Apache's do."""
    for broker in twins.brokers:
        store = broker.parts.store
        message = Message(topic, 0, b"body", dict(pairs), born_ms=Millis(START_MS))
        encoded = props.encode(message.properties)
        if has_origin:
            encoded += props.encode({props.WMQ_ORIGIN: origin_text(timer_origin(1 << 30))})
        if not has_end:
            encoded = encoded[:-1]
        with mock.patch("wheelmq.store.store._encode_properties", return_value=encoded):
            store.append(message, real_queue=store.real_queue(message.properties))
        broker.tick()


def _frame(topic: str, properties: str, *, is_binary: bool = False) -> bytes:
    if is_binary:
        text = f"UNIQ_KEY\x01{'0A' * 16}\x02{properties}"
        return _binary_frame(topic, text.replace("\\u0001", "\x01").replace("\\u0002", "\x02"))
    header = (
        f'{{"code":310,"extFields":{{"a":"g","b":"{topic}","c":"TBW102","d":"4","e":"1","f":"0","g":"1700000000000",'
        f'"h":"0","i":"UNIQ_KEY\\u0001{"0A" * 16}\\u0002{properties}","j":"0","k":"false","m":"false"}},"flag":0,'
        f'"language":"JAVA","opaque":5,"serializeTypeCurrentRPC":"JSON","version":479}}'
    ).encode()
    return (4 + len(header) + 3).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + b"abc"


def _binary_frame(topic: str, properties: str) -> bytes:
    fields = {"a": "g", "b": topic, "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0"}
    ext = fields | {"i": properties, "j": "0", "k": "false", "m": "false"}
    return frame.encode_binary(Command(code=310, opaque=5, ext=ext, body=b"abc", language="JAVA"))


def _batch(count: int, shared: str, last: bytes = b"", *, is_binary: bool = False) -> bytes:
    """Return a batch of `count` messages to queue 1 of Alpha. The last message also has the properties of `last`."""
    fields = {"a": "g", "b": "Alpha", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0"}
    own = b"WAIT\x01false\x02TAGS\x01TagA\x02UNIQ_KEY\x01%032X\x02"
    messages = [(i, b"body %d" % i, own % i + (last if i == count - 1 else b"")) for i in range(count)]
    command = Command(code=320, opaque=5, ext=fields | {"i": shared, "m": "true"}, body=batch_body(messages))
    return frame.encode_binary(command) if is_binary else frame.encode(command)
