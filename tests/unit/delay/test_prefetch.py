"""Records are in memory before their release reads them: those of blocks always, others with timerWarmEnable."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wheelmq.delay.prefetch import spans_of
from wheelmq.formats.disk import properties as props
from wheelmq.store.mapped import MappedSequence
from wheelmq.system.mapped_file import MappedFile
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel
from wheelmq.testing.workers import HeldWorker


@pytest.fixture
def prefetched(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bytes of all prefetched spans."""
    found: list[bytes] = []
    populate = MappedFile.populate

    def note(self: MappedFile, start: int, stop: int) -> None:
        found.append(bytes(self.view[start:stop]))
        populate(self, start, stop)

    monkeypatch.setattr(MappedFile, "populate", note)
    return found


def test_each_record_is_prefetched_once_before_its_due_time(tmp_path: Path, prefetched: list[bytes]) -> None:
    reading = HeldWorker()
    with BrokerHarness(tmp_path, timer_warm_enable=True, timer_lead_ms=8000, reading=reading) as harness:
        model = PipelineModel(harness)
        ways = ({props.DELAY: "3"}, {props.TIMER_DELAY_MS: "10500"})
        for i, own in enumerate(ways):
            harness.send("T", b"near %d|" % i, properties=own)
            harness.send("U", bytes(9000))
        harness.send("T", b"far|", delay_ms=14_000)
        harness.advance(6000, model.work, 500)
        reading.run()
        prefetched.clear()
        harness.advance(2500, model.work, 500)
        assert prefetched == [] and len(reading) == 1  # a tick reads nothing itself, and starts no second job
        reading.run()
        harness.tick()
        reading.run()
        joined = b"".join(prefetched)
        assert harness.bodies("T") == [] and b"far|" not in joined
        assert [joined.count(b"near %d|" % i) for i in range(len(ways))] == [1, 1]
        for _ in range(14):
            harness.advance(500, model.work)
            reading.run()
        assert b"".join(prefetched).count(b"far|") == 1
        assert len(harness.bodies("T")) == 3


@pytest.mark.parametrize("has_pipeline", [True, False])
def test_records_of_blocks_are_prefetched_when_a_scan_arms_them(
    tmp_path: Path, prefetched: list[bytes], has_pipeline: bool
) -> None:
    reading = HeldWorker()
    with BrokerHarness(tmp_path, timer_lead_ms=8000, reading=reading) as harness:
        model = PipelineModel(harness)
        for i in range(3):
            harness.send("T", b"%d|" % i + bytes(9000), properties={props.DELAY_IN_SECONDS: "15"})
        harness.send("T", b"later|", properties={props.DELAY_IN_SECONDS: "25"})
        prefetched.clear()
        harness.advance(14_500, model.work if has_pipeline else None, 500)
        assert prefetched == [] and len(reading) == 1
        reading.run()
        joined = b"".join(prefetched)
        assert harness.bodies("T") == [] and b"later|" not in joined
        assert [joined.count(b"%d|" % i) for i in range(3)] == [1, 1, 1]
        harness.advance(1000)
        assert len(harness.bodies("T")) == 3


def test_timers_are_not_prefetched_by_default(harness: BrokerHarness, prefetched: list[bytes]) -> None:
    harness.send("T", b"near|", delay_ms=2000)
    harness.advance(3000, PipelineModel(harness).work, 500)
    assert harness.bodies("T") == [b"near|"] and not any(b"near|" in one for one in prefetched)


def test_nearby_records_of_a_file_form_one_span(tmp_path: Path, disk: SimulatedDisk) -> None:
    files = MappedSequence(disk, tmp_path, 1 << 14)
    for start in (0, 1 << 14):
        files.grow(start)
    positions = np.array([20_000, 100, 300, 9000, 16_300, 16_384, 99_000])
    sizes = np.array([50, 200, 10, 500, 84, 100, 10])
    assert [(int(file.path.name), start, stop) for file, start, stop in spans_of(files, positions, sizes)] == [
        (0, 100, 310),
        (0, 9000, 9500),
        (0, 16_300, 16_384),
        (16_384, 0, 3666),
    ]
    assert spans_of(files, positions[:0], sizes[:0]) == []
