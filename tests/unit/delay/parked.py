"""Parked records as Apache or a faulty writer leaves them."""

from __future__ import annotations

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.units import Millis
from wheelmq.testing.clock import START_MS
from wheelmq.testing.harness import BrokerHarness


def park_raw(harness: BrokerHarness, properties: dict[str, str], body: bytes = b"raw") -> int:
    """Append a record to the timer queue unchanged, as Apache or a faulty writer would. Returns its queue offset."""
    store = harness.broker.parts.store
    message = Message(TIMER_TOPIC, 0, body, dict(properties), born_ms=Millis(START_MS))
    appended = store.append(message, real_queue=store.real_queue(message.properties))
    harness.settle()
    return appended.queue_offset


def due(ms: int) -> dict[str, str]:
    """Return the times of a parked record that is due `ms` after the start."""
    return {props.TIMER_OUT_MS: str((START_MS + ms - 1) // 1000 * 1000), props.WMQ_DUE: f"{START_MS + ms:013d}"}


REAL = {props.REAL_TOPIC: "T", props.REAL_QID: "0", props.UNIQ_KEY: "K"}
