"""The kernels that serve sends write the same bytes and give the same answers as the plain code."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.twin.frames import batch_frame, batches, binary_send_frame, frames, send_frame, streams
from tests.twin.twins import Twins
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.codes import ResponseCode


@given(stream=streams())
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_kernel_and_plain_code_serve_sends_alike(twins: Twins, stream: bytes) -> None:
    twins.receive(stream)


@given(stream=st.lists(batches() | frames(), min_size=1, max_size=6))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_kernel_and_plain_code_serve_batches_alike(twins: Twins, stream: list[bytes]) -> None:
    twins.receive(send_frame("Alpha", "") + b"".join(stream))


KEY, WAIT = "UNIQ_KEY\x01K\x02", "WAIT\x01true\x02"


@pytest.mark.parametrize("shared", [KEY + WAIT, WAIT + KEY[:-1], WAIT])
@pytest.mark.parametrize("is_binary", [False, True])
def test_the_kernel_serves_batches(twins: Twins, shared: str, is_binary: bool) -> None:
    """No such batch falls back to the plain code."""
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(send_frame("Alpha", ""))
    served = kernel.parts.fast_send.served
    twins.receive(batch_frame(32, shared, is_binary=is_binary) * 2)
    assert kernel.parts.fast_send.served == served + 2
    assert twins.codes == [ResponseCode.SUCCESS] * 2
    assert kernel.parts.store.queues.end("Alpha", 1) == 65


@pytest.mark.parametrize("shared", ["", KEY, KEY + "WAIT\x01false\x02"])
def test_plain_code_serves_batches_without_wait_under_sync_flush(twins: Twins, shared: str) -> None:
    """With SYNC_FLUSH, the kernel serves a batch only if the batch says that its answer may wait for the disk."""
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(send_frame("Alpha", ""))
    served = kernel.parts.fast_send.served
    twins.receive(batch_frame(3, shared))
    assert kernel.parts.fast_send.served == served + (not kernel.parts.flush.is_sync)


def test_a_full_answer_buffer_is_sent_before_the_next_batch(twins: Twins) -> None:
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(send_frame("Alpha", ""))
    kernel.parts.fast_send._out = kernel.parts.fast_send._out[:4096]
    served = kernel.parts.fast_send.served
    twins.receive(batch_frame(20, KEY + WAIT) * 5 + batch_frame(100, KEY + WAIT) + batch_frame(20, KEY + WAIT))
    assert kernel.parts.fast_send.served == served + 6  # the answer to 100 messages is larger than the buffer
    assert twins.codes == [ResponseCode.SUCCESS] * 7


def test_a_batch_moves_whole_to_the_next_log_file(twins: Twins) -> None:
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(send_frame("Alpha", ""))
    served = kernel.parts.fast_send.served
    for count in range(30, 60):
        twins.receive(batch_frame(count, KEY + WAIT))
    assert kernel.parts.store.log.end > 2 * kernel.parts.store.log.files.file_bytes
    assert kernel.parts.fast_send.served > served + 25
    assert twins.codes == [ResponseCode.SUCCESS]


def test_plain_code_serves_a_batch_that_exceeds_the_journal(twins: Twins) -> None:
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(send_frame("Alpha", ""))
    kernel.parts.store.journal.table = kernel.parts.store.journal.table[:50]
    served = kernel.parts.fast_send.served
    twins.receive(batch_frame(30, KEY + WAIT) * 2)
    assert kernel.parts.fast_send.served == served + 1
    assert twins.codes == [ResponseCode.SUCCESS] * 2


@pytest.mark.parametrize("last", [b"DELAY\x011\x02", b"k\x01\0\x02", b"TIMER_DELAY_MS\x0150\x02", b"k\x01\xc3\xa9\x02"])
def test_plain_code_serves_a_batch_with_one_unusual_message(twins: Twins, last: bytes) -> None:
    """The kernel writes nothing of a batch if one of its messages, even the last, is for the plain code."""
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(send_frame("Alpha", ""))
    served, end = kernel.parts.fast_send.served, kernel.parts.store.log.end
    twins.receive(batch_frame(9, KEY + WAIT, last))
    assert kernel.parts.fast_send.served == served
    view = kernel.parts.store.log.files.file_at(end).view
    assert (kernel.parts.store.log.end == end) == (b"\0" in last)
    if kernel.parts.store.log.end == end:
        assert not any(view[end : end + 4096])


@given(limit=st.integers(0, 4), sends=st.lists(st.sampled_from(["50", "1500", "2500", "70000", "140000"]), max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_kernel_and_plain_code_reject_sends_to_full_slots_alike(
    tmp_path_factory: pytest.TempPathFactory, limit: int, sends: list[str]
) -> None:
    twins = Twins(tmp_path_factory.mktemp("twins"), timer_congest_num_each_slot=limit)
    try:
        twins.receive(send_frame("Alpha", ""))
        stream = b"".join(send_frame("Alpha", f"TIMER_DELAY_MS\\u0001{delay_ms}\\u0002") for delay_ms in sends)
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
        twins.receive(send_frame("Alpha", ""))
        twins.receive(send_frame("Alpha", asked))
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
    twins.receive(send_frame("Alpha", ""))  # the plain code creates the topic
    served = kernel.parts.fast_send.served
    for properties in (
        "",
        "TAGS\\u0001TagA\\u0002",
        "TIMER_DELAY_MS\\u000150\\u0002",
        "TIMER_DELIVER_MS\\u00011700000009000\\u0002",
    ):
        twins.receive(send_frame("Alpha", properties, is_binary=is_binary) * 3)
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
        twins.receive(send_frame("Alpha", ""))
        served = kernel.parts.fast_send.served
        one = batch_frame(3, KEY + WAIT) if kind == "batch" else send_frame("Alpha", "", is_binary=kind == "binary")
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
    twins.receive(send_frame("Alpha", ""))
    for broker in twins.brokers:
        broker.parts.hooks.register_topic_authority(authority)
    served = kernel.parts.fast_send.served
    twins.receive(send_frame("Alpha", "") * 3 + batch_frame(2, KEY + WAIT))
    assert kernel.parts.fast_send.served == served and seen == ["Alpha"] * 8


@pytest.mark.parametrize(
    "key", ["", "UNIQ_KEY\x01\x02", f"UNIQ_KEY\x01{'k' * 129}\x02", f"UNIQ_KEY\x01{'k' * 5000}\x02"]
)
def test_plain_code_serves_sends_with_a_missing_or_long_key(twins: Twins, key: str) -> None:
    """The plain code serves a send with no unique key or a long one, also if the answer waits for the disk."""
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(binary_send_frame("Alpha", f"{KEY}{WAIT}"))
    served = kernel.parts.fast_send.served
    twins.receive(binary_send_frame("Alpha", f"{key}{WAIT}"))
    assert kernel.parts.fast_send.served == served


@pytest.mark.parametrize("text", ['q"q', "back\\slash", "TAGS\x01a\x07\x02", "k\x01é\x02", ""])
def test_plain_code_serves_unusual_properties_of_a_binary_header(twins: Twins, text: str) -> None:
    """The plain code serves properties that an answer would have to escape."""
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(send_frame("Alpha", "", is_binary=True))
    served = kernel.parts.fast_send.served
    twins.receive(binary_send_frame("Alpha", f"UNIQ_KEY\x01{text}\x02{text}"))
    assert kernel.parts.fast_send.served == served
