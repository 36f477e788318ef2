"""Sends while the pipeline lags or does not run, and the release of their messages."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from wheelmq.formats.disk import properties as props
from wheelmq.testing import invariants
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

NOTES_MAX = 20


@pytest.mark.parametrize("restarts", [False, True])
def test_sends_beyond_the_limit_of_notes_are_accepted_and_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, restarts: bool
) -> None:
    """Messages that are noted or due within the lead are released on time. The others wait for the pipeline."""
    monkeypatch.setattr("wheelmq.delay.notes.NOTES_MAX", NOTES_MAX)
    with BrokerHarness(tmp_path, timer_lead_ms=5000) as harness:
        due_ms: dict[bytes, int] = {}

        def send(name: str, delay_ms: int) -> None:
            due_ms[name.encode()] = harness.now_ms + delay_ms
            assert harness.send("T", name.encode(), delay_ms=delay_ms).code == 0

        for i in range(NOTES_MAX):
            send(f"noted{i}", 12_000)
        for i in range(5):
            send(f"waits{i}", 8000)
            send(f"within{i}", 4000)
        notes = harness.broker.parts.timer.pending.notes
        assert (notes.count, notes.passed_over) == (NOTES_MAX + 5, 5)
        logged = [record for record in caplog.records if "the notes are full" in record.message]
        assert [record.levelno for record in logged] == [logging.ERROR]
        harness.advance(13_000)
        names = {f"noted{i}".encode() for i in range(NOTES_MAX)} | {f"within{i}".encode() for i in range(5)}
        records = harness.read_queue("T")
        assert {record.message.body for record in records} == names
        assert all(int(one.message.properties[props.TIMER_DEQUEUE_MS]) == due_ms[one.message.body] for one in records)
        if restarts:
            harness.restart(clean=False)  # the messages are due by now, and the notes have room for them
        else:
            model = PipelineModel(harness)
            harness.advance(1500, model.work, 500)
        harness.settle()
        assert set(harness.bodies("T")) == due_ms.keys() and len(harness.bodies("T")) == len(due_ms)
        invariants.check(harness.broker)
