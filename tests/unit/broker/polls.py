"""Long polls of a pipeline for its next turn."""

from __future__ import annotations

from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.harness import Ask, BrokerHarness
from wheelmq.testing.pipeline_model import lease_token


def poll(harness: BrokerHarness, epoch: int, timeout_ms: int = 1000) -> Ask:
    """Send a poll for a plan, which the broker may hold."""
    ext = headers.texts(epoch=epoch, timeoutMs=timeout_ms, token=lease_token(harness))
    asked = harness.submit(Command(code=RequestCode.WMQ_PIPELINE_PLAN, ext=ext), harness.connect())
    harness.tick()
    return asked
