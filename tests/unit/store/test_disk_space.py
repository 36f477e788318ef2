"""No byte of a store is written where its file has no disk space. The simulated disk checks it at each sync."""

from __future__ import annotations

from pathlib import Path

import pytest

from wheelmq.formats.disk import properties as props
from wheelmq.formats.kernels import jit
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

BODY = b"b" * 9000
LATER = b"l" * 3000
COUNT = 300
"""Messages of BODY that fill three log files."""


@pytest.mark.kernels
@pytest.mark.parametrize("mode", ["compiled", "plain"])
@pytest.mark.parametrize("clean", [True, False])
def test_bytes_are_written_where_the_file_has_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, clean: bool
) -> None:
    monkeypatch.setattr(jit, "MODE", mode)
    chosen = {"timer_log_file_bytes": 1 << 16, "max_index_num": 2000, "max_hash_slot_num": 100}
    with BrokerHarness(tmp_path / "store", **chosen) as harness:
        for i in range(COUNT):
            assert harness.send("T", BODY, properties={props.UNIQ_KEY: f"u{i}", props.KEYS: f"a{i} b c"}).code == 0
            assert harness.send("T", LATER, delay_ms=4000, properties={props.UNIQ_KEY: f"l{i}"}).code == 0
        harness.advance(1000, PipelineModel(harness).work)
        harness.restart(clean=clean)
        for _ in range(20):
            assert harness.send("T", BODY).code == 0
        harness.advance(6000, PipelineModel(harness).work)
        assert harness.bodies("T").count(LATER) == COUNT
        log = harness.broker.parts.store.log
        assert log.end > 2 * log.files.file_bytes
        harness.stop()


def test_the_loop_takes_space_in_steps(tmp_path: Path, disk: SimulatedDisk) -> None:
    with BrokerHarness(tmp_path / "store", disk=disk) as harness:
        file = None
        taken = []
        for _ in range(40):
            assert harness.send("T", BODY).code == 0
            file = harness.broker.parts.store.log.files.file_at(0).path
            taken.append(file.stat().st_blocks * 512)
        step = (1 << 20) // 8
        assert sorted(set(taken)) == [step, 2 * step, 3 * step]
