"""The shipped test suites, run against the shipped code."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from wheelmq.delay.settings import PRECISIONS_MS
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.parked import delete_key
from wheelmq.formats.units import LogPosition
from wheelmq.store.settings import StoreSettings
from wheelmq.store.store import Appended, DiskFull, Store
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.delay_suite import DelaySuite, Left
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel
from wheelmq.testing.store_suite import StoreSuite


class OurStore:
    """The store as a broker uses it, with one message per tick."""

    def __init__(self, folder: Path, disk: SimulatedDisk, clock: ManualClock) -> None:
        sizes = StoreSettings(path=folder, log_file_bytes=32 << 10, queue_file_bytes=20 * 50)
        self.store = Store(sizes, disk, clock)
        self.store.recover(lambda rows, names: None)

    def append(self, message: Message) -> Appended:
        if self.store.journal.count:
            self.store.dispatch()
        stored = self.store.append(message)
        with contextlib.suppress(DiskFull):  # the next append dispatches its unit first
            self.store.dispatch()
        return stored

    def bodies(self, topic: str, queue_id: int) -> list[bytes]:
        queue = self.store.queues.find(topic, queue_id)
        positions = [int(unit["position"]) for units in queue.chunks() for unit in units] if queue else []
        records = [self.store.log.record_at(LogPosition(position)) for position in positions]
        return [record.message.body for record in records if record is not None]

    def sync(self) -> None:
        upto, job = self.store.flush_job()
        job()
        self.store.note_flushed(upto)

    def close(self) -> None:
        self.store.close()


class TestOurStore(StoreSuite):
    def open(self, folder: Path, disk: SimulatedDisk, clock: ManualClock) -> OurStore:
        return OurStore(folder, disk, clock)


class OurDelays:
    """A broker with a pipeline that turns twice a second."""

    def __init__(self, folder: Path, precision_ms: int) -> None:
        self.harness = BrokerHarness(
            folder,
            flush_mode="SYNC_FLUSH",
            timer_precision_ms=precision_ms,
            timer_roll_window_slots=10_000 // precision_ms,
            timer_slots=3_700_000 // precision_ms,
            timer_lead_ms=3000,
            log_file_bytes=64 << 10,
            file_reserved_time=24 * 365,
        )
        self.model = PipelineModel(self.harness)

    @property
    def now_ms(self) -> int:
        return self.harness.now_ms

    def send(self, name: bytes, due_ms: int) -> None:
        answer = self.harness.send("T", name, deliver_ms=due_ms, properties={props.UNIQ_KEY: name.decode()})
        assert answer.code == 0, answer

    def cancel(self, name: bytes) -> bool:
        properties = {props.TIMER_DEL_UNIQKEY: delete_key("T", name.decode())}
        return self.harness.send("T", b"x", delay_ms=5000, properties=properties).ext["cancelResult"] == "cancelled"

    def advance(self, ms: int) -> None:
        self.harness.advance(ms, self.model.work, 500)

    def left(self) -> list[Left]:
        records = self.harness.read_queue("T")
        return [Left(one.message.body, int(one.message.properties[props.TIMER_DEQUEUE_MS])) for one in records]

    def set_clock(self, ms: int) -> None:
        self.harness.clock.step(ms)

    def restart(self, how: str, away_ms: int = 0) -> None:
        if how == "power cut":
            self.harness.cut_power(keep=0.3)
        elif how == "killed":
            self.harness.crash()
        else:
            self.harness.stop()
        self.harness.clock.advance(away_ms)
        self.harness.start()


class TestOurDelays(DelaySuite):
    @pytest.fixture(autouse=True, params=PRECISIONS_MS)
    def precision(self, request: pytest.FixtureRequest) -> None:
        self.precision_ms = request.param

    def open(self, folder: Path) -> OurDelays:
        return OurDelays(folder, self.precision_ms)


class OurBlockDelays(OurDelays):
    """The same broker with blocks. A test spans several blocks."""

    def send(self, name: bytes, due_ms: int) -> None:
        delay_ms = due_ms - self.now_ms
        assert delay_ms % 1000 == 0 and delay_ms, delay_ms
        properties = {props.UNIQ_KEY: name.decode(), props.DELAY_IN_SECONDS: str(delay_ms // 1000)}
        answer = self.harness.send("T", name, properties=properties)
        assert answer.code == 0, answer


class TestOurBlockDelays(DelaySuite):
    grain_ms = 1000

    def open(self, folder: Path) -> OurBlockDelays:
        return OurBlockDelays(folder, 1000)
