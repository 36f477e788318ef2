"""A random run of a broker and a shipper, with faults. Restores to random times are compared with the truth."""

from __future__ import annotations

import errno
import shutil
from collections import Counter
from pathlib import Path
from random import Random

from tests.ship.truth import Copy, Stored, copy_of, expected, pending_in, queue_ends, records_of
from wheelmq.backup.catalog import read_catalog
from wheelmq.backup.check import TargetCheck
from wheelmq.backup.plan import Plan, make_plan, windows
from wheelmq.backup.restore import Restore
from wheelmq.backup.settings import ShipSettings
from wheelmq.backup.shipper import Shipper
from wheelmq.backup.source import Source
from wheelmq.backup.target import FolderTarget
from wheelmq.formats.disk.origin import NO_ORIGIN
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.properties import WMQ_ORIGIN
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.names import BLOCK_TOPIC, SCHEDULE_TOPIC
from wheelmq.system.disk import ReadOnlyDisk
from wheelmq.system.workers import InlineWorker
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.stops import Died, Stops

FILES = {
    "log_file_bytes": 16 << 10,
    "queue_file_bytes": 20 * 40,
    "block_log_file_bytes": 2 << 10,
    "block_queue_file_bytes": 24 * 10,
    "file_reserved_time": 0,
}
DRAIN_MS = 120_000
PARKED_IN = {BLOCK_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC}


class World:
    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.folder = folder
        self.clock = ManualClock()
        self.harness = BrokerHarness(folder / "store", clock=self.clock, seed=seed, **FILES)
        self.target_disk = SimulatedDisk()
        self.target = FolderTarget(self.target_disk, folder / "target")
        self.keep_ms = self.random.choice((None, 20_000, 60_000))
        self.settings = ShipSettings(
            piece_bytes=self.random.choice((1 << 10, 4 << 20)),
            step_bytes_max=self.random.choice((4 << 10, 32 << 20)),
            small_bytes_max=self.random.choice((0, 1 << 10, 2 << 20)),
            merged_count=self.random.choice((2, 3, 8)),
            merged_ms=self.random.choice((3000, 300_000)),
            chunk_bytes=self.random.choice((1, 8 << 10)),
            objects_of_points=self.random.choice((2, 4)),
            expiry_interval_ms=1000,
            keep_ms=self.keep_ms,
        )
        self.history: str | None = None
        self.shipper: Shipper | None = None
        self.copies: list[Copy] = []
        self.last: Copy | None = None
        self._captures: list[int] = []
        """The last capture of each copy."""
        self._captured: Copy | None = None
        """The truth at the last capture."""
        self._noted = 0
        self.blind: list[int] = []
        """Captures after which the truth is not known: the next point is of a store that no broker has recovered."""
        self.sent = 0
        self.counts: Counter[str] = Counter()

    # Operations ----------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        operations = (
            (self.send, 30),
            (self.advance, 15),
            (self.ship, 25),
            (self.expire, 3),
            (self.crash, 2),
            (self.cut_power, 2),
            (self.stop_cleanly, 1),
            (self.restart_shipper, 3),
            (self.kill_shipper, 4),
            (self.fail_target, 3),
            (self.restore, 1),
        )
        names = [operation for operation, _ in operations]
        weights = [weight for _, weight in operations]
        for _ in range(steps):
            (operation,) = self.random.choices(names, weights)
            self.counts[operation.__name__] += 1
            operation()
            self._look()
        self.ship_all()
        self.restore()
        self.restore(at_end=True)

    def _look(self) -> None:
        """Note all records: some may expire before the next capture."""
        if self.harness.is_running:
            self.last = copy_of(self.harness.broker, self.clock.now_ms(), self.last)

    def send(self) -> None:
        for _ in range(self.random.randrange(1, 6)):
            self.sent += 1
            body = f"{self.sent} ".encode() + bytes(self.random.randrange(400))
            topic = self.random.choice(("A", "B"))
            kind = self.random.randrange(5)
            if kind == 0:
                self.harness.send(topic, body)
            elif kind == 1:
                self.harness.send(topic, body, delay_ms=self.random.randrange(1, 40_000))
            elif kind == 2:
                self.harness.send(topic, body, properties={"DELAY": str(self.random.randrange(1, 5))})
            elif kind == 3:
                seconds = str(self.random.choice((1, 3, 15, 40, 90)))
                self.harness.send(topic, body, properties={"delayInSeconds": seconds})
            else:
                self.harness.send(topic, body, queue_id=1)

    def advance(self) -> None:
        self.harness.advance(self.random.choice((1, 100, 1000, 5000, 15_000)))

    def expire(self) -> None:
        """Let log files expire, with everything on disk."""
        self.harness.advance(5000)
        for _ in range(2):
            self._look()
            self.harness.broker.parts.file_upkeep.expiry.poll(at_once=True)
            self.harness.advance(1000)

    def crash(self) -> None:
        self.harness.restart(clean=False)

    def cut_power(self) -> None:
        """Cut the power of the machine with broker and shipper. The target is on another machine."""
        self.harness.cut_power(self.random.random())
        self.shipper = None
        before = self._noted
        self.blind.append(before)  # a message of a block that the power cut has lost may be in a restore
        if self.random.random() < 0.3:
            self._captured = None
            self.ship()  # before the broker has recovered the store
            self.blind += range(before, self.shipper.history.last) if self.shipper is not None else ()
            self.shipper = None
        self.clock.advance(self.random.choice((10, 3000)))
        self.harness.start()

    def stop_cleanly(self) -> None:
        self.harness.restart(clean=True)

    # The shipper ---------------------------------------------------------------------------------------------------

    def ship(self) -> None:
        """Make some steps."""
        for _ in range(self.random.randrange(1, 4)):
            self.step()

    def ship_all(self) -> None:
        """Ship until everything is in the target."""
        self.target_disk.heal()
        while not self.step():
            pass

    def step(self) -> bool:
        """Make one step. Returns whether it reached the end of the store."""
        if self.shipper is None:
            shipper = Shipper(
                Source(ReadOnlyDisk(), StorePaths(self.folder / "store"), self.settings.piece_bytes),
                self.target,
                self.clock,
                self.settings,
                InlineWorker(),
                self.random,
            )
            shipper.open(self.history)
            self.history, self.shipper = shipper.identity.history, shipper
            self._note()  # the capture of a killed shipper may have reached the target
        if self.harness.is_running and self.shipper._attempt is None:
            self._captured = copy_of(self.harness.broker, self.clock.now_ms(), self.last)
        self.counts["restart"] += self.shipper._is_restart
        result = self.shipper.step()
        if result.is_complete:
            self._note()
        return result.is_complete

    def _note(self) -> None:
        """Note the last copy if the target has a new complete point."""
        assert self.shipper is not None
        history = self.shipper.history
        if self._captured is not None and history.is_complete and history.last > self._noted:
            assert self._captured.made_ms == history.made_ms
            self.copies.append(self._captured)
            self._captures.append(history.last)
        self._noted = max(self._noted, history.last)

    def restart_shipper(self) -> None:
        self.shipper = None
        if self.random.random() < 0.5:
            self.expire()

    def kill_shipper(self) -> None:
        """Kill the shipper at a random failpoint. The power of the target may fail too."""
        left = self.random.randrange(12)
        for _ in range(4):
            with Stops(die_at=left) as stops:
                try:
                    self.step()
                except Died as died:
                    self.counts[str(died)] += 1
                    break
            left -= len(stops.passed)
            self.send()
        else:
            return
        self.shipper = None
        if self.random.random() < 0.3:
            self.target_disk.cut_power(self.random)
        self.step()  # the killed step may have reached the target

    def fail_target(self) -> None:
        self.target_disk.fail_call(self.random.randrange(1, 8), OSError(errno.EIO, "planted"))
        for _ in range(6):
            try:
                self.step()
            except OSError as error:
                if error.strerror != "planted":
                    raise
                self.counts["target failed"] += 1
            self.send()
        self.target_disk.heal()
        self.shipper = None if self.random.random() < 0.5 else self.shipper

    # Restores ------------------------------------------------------------------------------------------------------

    def restore(self, *, at_end: bool = False) -> None:
        """Restore to a random time, and compare the result."""
        self.ship_all()
        points = [point for one in read_catalog(self.target) for point in one.points]
        window = self.random.choice(windows(points))
        at_ms = None if at_end else self.random.randrange(window.first_ms, window.last_ms + 2000)
        if at_ms is not None and at_ms > window.last_ms and window != windows(points)[-1]:
            at_ms = window.last_ms
        if not at_end and self.random.random() < 0.2:
            at_ms = self.random.choice([point.made_ms for point in points if window.first_ms <= point.made_ms])
            if not any(one.first_ms <= at_ms <= one.last_ms for one in windows(points)):
                return
        copies = self.copies
        if at_ms is not None:
            first = max((i for i, copy in enumerate(self.copies) if copy.made_ms <= at_ms), default=0)
            if self.copies[first].made_ms > at_ms:
                return
            captures = self._captures[first : first + 2]
            if set(self.blind) & set(range(captures[0], captures[-1])) or (len(captures) == 1 and self.blind):
                return
            gaps = [point.first for point in points if point.is_restart and point.first > captures[0]]
            until = min(gaps, default=self._noted + 1)
            copies = [copy for copy, capture in zip(copies, self._captures, strict=True) if capture < until]
        self.compare(make_plan(points, at_ms), at_ms, copies)

    def compare(self, plan: Plan, at_ms: int | None, copies: list[Copy]) -> None:
        """Restore by a plan. `copies` end before the gap that follows the wanted time."""
        root = self.folder / "restored"
        checked = TargetCheck(self.target, plan).run()
        made = Restore(self.target, plan, SimulatedDisk(), lambda done, total: None).run(root)
        assert made.counts == checked.counts and made.log_end == checked.log_end
        assert self._captured is not None
        truth = self._captured.records if at_ms is None else expected(copies, at_ms)
        pending = pending_in(truth)
        assert made.counts.timers + made.counts.in_levels + made.counts.in_blocks == len(pending)
        clock = ManualClock(self.clock.now_ms())
        with BrokerHarness(root, clock=clock, **FILES) as harness:
            log = harness.broker.parts.engine.store.log
            copy = self._captured
            if at_ms is not None:
                copy = [one for one in copies if one.made_ms <= at_ms][-1]
            assert log.start <= copy.log_start
            mine = {one for one in records_of("log", log) if one.position < made.log_end}
            wanted = [one for one in truth if one.log == "log"]
            assert mine == {one for one in wanted if one.position >= log.start}
            queues = harness.broker.parts.engine.store.queues
            for (topic, queue_id), end in queue_ends(wanted).items():
                found = max(
                    [
                        queues.end(topic, queue_id)
                        - sum(
                            (one.record.message.topic, one.record.message.queue_id) == (topic, queue_id)
                            for one in records_of("log", log)
                            if one.position >= made.log_end
                        )
                    ]
                )
                assert found == end, (topic, queue_id, found, end)
            self._drain(harness, made.log_end, pending)
        shutil.rmtree(root)
        self.counts["restored"] += 1
        self.counts["restored pending"] += len(pending)
        self.counts["restored with expired"] += made.log_start > 0

    def _drain(self, harness: BrokerHarness, log_end: int, pending: list[bytes]) -> None:
        """Let everything become due: each pending message leaves once, and not early."""
        harness.advance(DRAIN_MS)
        left = []
        for one in records_of("log", harness.broker.parts.engine.store.log):
            record = one.record
            if one.position < log_end or record.message.topic in PARKED_IN:
                continue
            assert WMQ_ORIGIN in record.message.properties
            left.append(record.message.body)
        assert sorted(left) == pending

    def close(self) -> None:
        if self.harness.is_running:
            self.harness.stop()


__all__ = ["NO_ORIGIN", "Stored", "World"]
