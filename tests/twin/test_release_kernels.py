"""The kernels that release messages write the same bytes as the plain code."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.twin.frames import send_frame, streams
from tests.twin.twins import START_MS, Twins
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.origin import origin_text, timer_origin
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.names import RETRY_PREFIX, SCHEDULE_TOPIC
from wheelmq.formats.units import Millis


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
    twins.receive(send_frame("Alpha", ""))
    stream = [
        send_frame("Alpha", "TIMER_DELAY_MS\\u0001500\\u0002" + producer.format(value, "xyz" if is_short else "wxyz"))
        for producer, value, is_short in sends
    ]
    twins.receive(b"".join(stream))
    kernel, _ = twins.brokers
    released = kernel.parts.releaser.counts["released"]
    twins.advance(500)
    assert kernel.parts.releaser.counts["released"] == released + len(sends)


def test_the_kernel_releases_messages_of_blocks(twins: Twins) -> None:
    kernel, _ = twins.brokers
    assert kernel.parts.fast_send is not None
    twins.receive(send_frame("Alpha", ""))
    served = kernel.parts.fast_send.served
    for _ in range(3):
        twins.receive(send_frame("Alpha", "delayInSeconds\\u00011\\u0002TAGS\\u0001TagA\\u0002"))
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
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_kernel_and_plain_code_release_records_parked_again_alike(
    tmp_path_factory: pytest.TempPathFactory, parked: list[tuple[str, list[tuple[str, str]], bool, bool]]
) -> None:
    """Records of rolled and moved messages have an origin, a count of rolls, and times of an earlier release."""
    twins = Twins(tmp_path_factory.mktemp("twins"), log_file_bytes=1 << 17)
    try:
        twins.receive(send_frame("Alpha", ""))
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
    twins.receive(send_frame("Alpha", ""))
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
    twins.receive(send_frame(topic, ""))
    with mock.patch.object(kernel.parts.releaser, "_append_one", wraps=kernel.parts.releaser._append_one) as plain:
        for _ in range(3):
            twins.receive(send_frame(topic, "".join(f"{name}\\u0001{value}\\u0002" for name, value in kind.items())))
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
