"""Messages of blocks on their way out, where jobs end between ticks and disks refuse."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from wheelmq.delay.timer.turns import TurnPlan
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.harness import Ask, BrokerHarness
from wheelmq.testing.offload import HeldOffload
from wheelmq.testing.pipeline_model import PipelineModel


def submit(harness: BrokerHarness, seconds: int, body: bytes) -> Ask:
    return harness.submit(harness.send_command("T", body, properties={props.DELAY_IN_SECONDS: str(seconds)}))


def to_middle_of_block(harness: BrokerHarness) -> None:
    """To half a second behind the start of a block of 10 s."""
    harness.clock.advance((10_500 - harness.now_ms) % 10_000)
    harness.settle()


def run_all(harness: BrokerHarness) -> None:
    while harness.run_jobs():
        pass


@pytest.mark.parametrize("seconds", [54, 58])
def test_what_a_flush_brings_to_disk_as_a_turn_is_planned(tmp_path: Path, seconds: int) -> None:
    """It is in the block of what the wheel has counted (54), or in one of its own (58)."""
    offload, background = HeldOffload(), HeldOffload()
    with BrokerHarness(
        tmp_path, offload=offload, background=background, flush_mode="SYNC_FLUSH", timer_lead_ms=30_000
    ) as harness:
        to_middle_of_block(harness)
        run_all(harness)
        model = PipelineModel(harness)
        model.open()
        model.is_patient = False
        submit(harness, seconds, b"A")
        harness.tick()
        run_all(harness)
        for _ in range(2 * (seconds - 12)):
            harness.clock.advance(500)
            harness.tick()
            run_all(harness)
        submit(harness, 14, b"B")
        harness.tick()
        offload.work()
        offload.tell()
        assert model.terms is not None
        fields = headers.texts(epoch=model.terms["epoch"], timeoutMs=0)
        asked = harness.submit(Command(code=RequestCode.WMQ_PIPELINE_PLAN, ext=fields))
        harness.tick()
        assert asked.answer is not None
        plan = msgspec.json.decode(asked.answer.body, type=TurnPlan)
        assert plan.blocks is not None and plan.blocks.rows == 2
        model.commit(plan, [model.hand_over(plan, task) for task in model.read(plan)])
        assert harness.broker.timer.armed.count == 2
        model.is_patient = True
        for _ in range(40):
            harness.clock.advance(500)
            harness.tick()
            run_all(harness)
        assert harness.bodies("T") == [b"A", b"B"]
