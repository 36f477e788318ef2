"""The frames of the generator, their deliveries, and the count of lost, duplicate and early messages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import rawload
from bench.deliveries import Deliveries, judge, read
from bench.rawload import PREFIX, Bytes, template
from wheelmq.broker.handlers.send import split_batch
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.harness import BrokerHarness

TOPIC = "Bench"
COUNT = 20


def frames(first: int, count: int, deliver_ms: tuple[int, int] | None = None, batch: int = 1) -> list[Command]:
    """Return the frames of the generator as a broker reads them."""
    made = template(TOPIC, 64, timed=deliver_ms is not None, batch=batch)
    out = np.zeros(count * len(made.frame), np.uint8)
    places = (made.opaque_at, made.uniq_at, made.time_at, made.queue_at)
    times = np.array(deliver_ms or (0, 0), np.int64)
    size = rawload.build(made.frame, *places, 4, first, count, times, out)
    raw = out[:size].tobytes()
    return [frame.decode(raw, at, at + len(made.frame)) for at in range(0, size, len(made.frame))]


def test_generated_frames_are_readable_sends() -> None:
    found = frames(14, 4, (1_700_000_000_001, 1_700_000_000_002))
    assert [command.opaque - rawload.OPAQUE_BASE for command in found] == [14, 15, 16, 17]
    assert [command.ext["e"] for command in found] == ["2", "3", "0", "1"]
    properties = dict(pair.split("\1") for pair in found[1].ext["i"].split("\2") if pair)
    assert properties["UNIQ_KEY"] == f"{PREFIX}{15:010X}"
    assert properties["TIMER_DELIVER_MS"] == "1700000000002"


def test_generated_batches_are_readable_sends() -> None:
    found = frames(14, 2, batch=3)
    assert [command.opaque - rawload.OPAQUE_BASE for command in found] == [14, 15]
    assert all(command.code == RequestCode.SEND_BATCH_MESSAGE and command.ext["m"] == "true" for command in found)
    inner = split_batch(bytes(found[1].body))
    assert [body for _, body, _ in inner] == 3 * [b"x" * 64]
    assert [properties["UNIQ_KEY"] for _, _, properties in inner] == [f"{PREFIX}{15 * 4 + i:010X}" for i in (1, 2, 3)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the messages of the generator, odd ones through the timer, and one foreign message."""
    harness = BrokerHarness(tmp_path / "store")
    now_ms = harness.now_ms
    for number, command in enumerate(frames(0, COUNT, (now_ms, now_ms + 700))):
        answer = harness.ask(command)
        assert answer.code == 0, number
    harness.send(TOPIC, b"x")
    harness.advance(1000)
    harness.stop()
    return tmp_path / "store"


def test_read_returns_the_deliveries_of_a_topic(store: Path) -> None:
    found = read(store, TOPIC, with_keys=True)
    assert sorted(found.number.tolist()) == [-1, *range(COUNT)]
    ours = found.number >= 0
    assert (found.store_ms[ours] >= found.deliver_ms[ours]).all()
    assert (found.due_ms[ours] == np.where(found.number[ours] % 2, found.deliver_ms[ours], -1)).all()
    assert {key.tobytes().decode() for key in found.keys[ours]} == {f"{PREFIX}{i:010X}" for i in range(COUNT)}
    assert len(read(store, "Nobody")) == 0


def deliveries(rows: list[tuple[int, int, int]]) -> Deliveries:
    number, store_ms, deliver_ms = np.array(rows, np.int64).T
    nothing = np.full(len(rows), -1, np.int64)
    return Deliveries(store_ms, number, deliver_ms, nothing, nothing, np.zeros((0, 32), np.uint8))


def accepted(*flags: int) -> Bytes:
    return np.array(flags, np.uint8)


def test_judge_counts_lost_duplicate_early_and_unknown_messages() -> None:
    found = judge(deliveries([(0, 10, 10), (1, 9, 10), (1, 12, 10), (7, 1, -1)]), accepted(1, 1, 0, 1))
    assert (found.lost, found.twice, found.early, found.strange) == (1, 1, 1, 1)


def test_an_unanswered_message_may_be_delivered_or_missing() -> None:
    found = judge(deliveries([(0, 10, 10)]), accepted(0, 0))
    assert (found.lost, found.twice, found.early, found.strange) == (0, 0, 0, 0)
