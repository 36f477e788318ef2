"""Without faults, every message leaves at its due millisecond, in the order of parking."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.origin import Origin, origin_index, parse_origin
from wheelmq.testing import invariants
from wheelmq.testing.clock import START_MS
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

from .profiles import profile

QUEUES = 2
WINDOW_S = 8

sends = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 300, 1700]),  # wait before the send
        st.one_of(st.integers(1, 1500), st.integers(1, 3 * WINDOW_S).map(lambda s: 1000 * s), st.integers(1, 25_000)),
        st.integers(0, QUEUES - 1),
    ),
    min_size=1,
    max_size=25,
)


def parked_at(record: Record) -> int:
    """Return the timer queue offset of the message that a released record settles."""
    origin = parse_origin(record.message.properties[props.WMQ_ORIGIN])
    assert origin is not None
    return origin_index(Origin(origin))


@profile(examples=25)
@given(
    sends=sends,
    turn_ms=st.sampled_from([None, 100, 250, 1000]),
    index_parts=st.integers(1, 3),
    walk_parts=st.integers(1, 3),
    precision_ms=st.sampled_from([1000, 500, 200, 100]),
    phase_ms=st.integers(0, 999),
)
def test_every_timer_leaves_at_its_due_millisecond(
    sends: list[tuple[int, int, int]],
    turn_ms: int | None,
    index_parts: int,
    walk_parts: int,
    precision_ms: int,
    phase_ms: int,
) -> None:
    """Runs with a pipeline at a fixed interval, or without any where all messages are within memory's bounds."""
    with (
        tempfile.TemporaryDirectory(prefix="wheelmq-") as folder,
        BrokerHarness(
            Path(folder),
            timer_precision_ms=precision_ms,
            timer_roll_window_slots=WINDOW_S * 1000 // precision_ms,
            timer_slots=4 * WINDOW_S * 1000 // precision_ms,
            timer_lead_ms=4000,
            timer_log_file_bytes=52 * 10 + 16,
            queue_file_bytes=20 * 16,
        ) as harness,
    ):
        harness.clock.advance(phase_ms)
        model = PipelineModel(harness, index_parts=index_parts, walk_parts=walk_parts)
        work = model.work if turn_ms else None
        due_ms: dict[bytes, int] = {}
        for wait_ms, delay_ms, queue_id in sends:
            harness.advance(wait_ms, work, turn_ms or 1)
            body = b"%d" % len(due_ms)
            due_ms[body] = harness.now_ms + delay_ms
            assert harness.send("T", body, delay_ms=delay_ms, queue_id=queue_id).code == 0
        harness.advance(max(due_ms.values()) - harness.now_ms, work, turn_ms or 1)
        assert harness.now_ms >= START_MS
        log = invariants.check(harness.broker)
        seen: set[bytes] = set()
        for queue_id in range(QUEUES):
            records = harness.read_queue("T", queue_id)
            for record in records:
                assert int(record.message.properties[props.TIMER_DEQUEUE_MS]) == due_ms[record.message.body]
                seen.add(record.message.body)
            order = [(due_ms[record.message.body], parked_at(record)) for record in records]
            assert order == sorted(order)
        assert seen == set(due_ms)
        assert len(log.settled) == len(log.parked)


LEVELS = "1s 2s 5s 9s"
LEVELS_MS = (1000, 2000, 5000, 9000)

leveled = st.lists(
    st.tuples(st.sampled_from([0, 0, 1, 300, 1700]), st.integers(1, 6), st.integers(0, QUEUES - 1)),
    min_size=1,
    max_size=25,
)


@profile(examples=20)
@given(
    sends=leveled,
    turn_ms=st.sampled_from([None, 100, 1000]),
    queue_parts=st.integers(1, 3),
    ends=st.lists(st.tuples(st.integers(0, 24), st.sampled_from(["clean", "killed"])), max_size=2),
)
def test_every_level_message_leaves_at_its_due_millisecond(
    sends: list[tuple[int, int, int]], turn_ms: int | None, queue_parts: int, ends: list[tuple[int, str]]
) -> None:
    """Holds also when the broker stops or is killed on the way."""
    with (
        tempfile.TemporaryDirectory(prefix="wheelmq-") as folder,
        BrokerHarness(Path(folder), message_delay_level=LEVELS, timer_lead_ms=4000, queue_file_bytes=20 * 4) as harness,
    ):
        model = PipelineModel(harness, queue_parts=queue_parts)
        work = model.work if turn_ms else None
        due_ms: dict[bytes, int] = {}
        stops = dict(ends)
        for i, (wait_ms, level, queue_id) in enumerate(sends):
            harness.advance(wait_ms, work, turn_ms or 1)
            body = b"%d" % i
            due_ms[body] = harness.now_ms + LEVELS_MS[min(level, len(LEVELS_MS)) - 1]
            assert harness.send("T", body, queue_id=queue_id, properties={props.DELAY: str(level)}).code == 0
            if i in stops:
                harness.restart(clean=stops[i] == "clean")
        harness.advance(max(due_ms.values()) - harness.now_ms, work, turn_ms or 1)
        log = invariants.check(harness.broker)
        left = {record.message.body: record.store_ms for i in range(QUEUES) for record in harness.read_queue("T", i)}
        assert left == due_ms
        assert len(log.in_levels) == len(due_ms) == len(log.settled_origins)
