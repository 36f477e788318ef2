"""The contract of a store as tests. To test your store, subclass StoreSuite and define `open`.

    class TestMyStore(StoreSuite):
        def open(self, folder, disk, clock):
            return MyStore(folder, disk, clock)

The suite opens a store again on the folder and the disk of a store that was closed, killed or lost its power.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Protocol

from wheelmq.formats.disk.message import Message
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.system.disk import DiskFull
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk


class StoredMessage(Protocol):
    @property
    def position(self) -> LogPosition: ...
    @property
    def queue_offset(self) -> QueueOffset: ...
    @property
    def store_ms(self) -> Millis: ...


class StoreUnderTest(Protocol):
    """The contract of a store. Its log files have at most 64 KiB, so that the tests fill some."""

    def append(self, message: Message) -> StoredMessage:
        """Store a message. Raises DiskFull and then changes nothing."""
        ...

    def bodies(self, topic: str, queue_id: int) -> list[bytes]:
        """Return the bodies of a queue, in order."""
        ...

    def sync(self) -> None:
        """Fsync all appended messages."""
        ...

    def close(self) -> None:
        """Stop cleanly."""
        ...


def message(number: int, topic: str = "T", queue_id: int = 0, pad: int = 500) -> Message:
    return Message(topic, queue_id, body_of(number, pad), {"KEYS": f"k{number}"})


def body_of(number: int, pad: int = 500) -> bytes:
    return (b"%d" % number).ljust(pad, b".")


class StoreSuite:
    def open(self, folder: Path, disk: SimulatedDisk, clock: ManualClock) -> StoreUnderTest:
        raise NotImplementedError

    def test_a_queue_reads_as_it_was_written_over_many_files(self, tmp_path: Path) -> None:
        store = self.open(tmp_path, SimulatedDisk(), ManualClock())
        stored = [store.append(message(i, queue_id=i % 3)) for i in range(400)]
        for queue_id in range(3):
            mine = range(queue_id, 400, 3)
            assert [stored[i].queue_offset for i in mine] == list(range(len(mine)))
            assert store.bodies("T", queue_id) == [body_of(i) for i in mine]
        positions = [one.position for one in stored]
        assert positions == sorted(set(positions))

    def test_store_times_never_decrease(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = self.open(tmp_path, SimulatedDisk(), clock)
        first = store.append(message(0))
        clock.step(-60_000)
        assert store.append(message(1)).store_ms >= first.store_ms

    def test_a_clean_stop_keeps_everything(self, tmp_path: Path) -> None:
        disk, clock = SimulatedDisk(), ManualClock()
        store = self.open(tmp_path, disk, clock)
        stored = [store.append(message(i)) for i in range(50)]
        store.close()
        disk.release_locks()
        disk.cut_power(Random(0), keep=0.0)
        again = self.open(tmp_path, disk, clock)
        assert again.bodies("T", 0) == [body_of(i) for i in range(50)]
        behind = again.append(message(50))
        assert behind.queue_offset == 50 and behind.position > stored[-1].position

    def test_a_kill_loses_nothing(self, tmp_path: Path) -> None:
        disk, clock = SimulatedDisk(), ManualClock()
        for life in range(3):
            store = self.open(tmp_path, disk, clock)
            assert store.bodies("T", 0) == [body_of(i) for i in range(life * 60)]
            for i in range(life * 60, life * 60 + 60):
                store.append(message(i))
            disk.release_locks()

    def test_a_power_cut_leaves_what_was_synced_and_the_first_of_the_rest(self, tmp_path: Path) -> None:
        for seed in range(12):
            randomness, disk, clock = Random(seed), SimulatedDisk(), ManualClock()
            store = self.open(tmp_path / str(seed), disk, clock)
            synced = randomness.randint(0, 120)
            for i in range(synced):
                store.append(message(i))
            store.sync()
            for i in range(synced, synced + randomness.randint(1, 40)):
                store.append(message(i))
            disk.write_back(randomness)
            disk.release_locks()
            disk.cut_power(randomness, randomness.random())
            left = self.open(tmp_path / str(seed), disk, clock).bodies("T", 0)
            assert len(left) >= synced, f"seed {seed}: {synced} messages were on disk, but only {len(left)} are left"
            assert left == [body_of(i) for i in range(len(left))], f"seed {seed}"

    def test_a_full_disk_rejects_and_changes_nothing(self, tmp_path: Path) -> None:
        disk, clock = SimulatedDisk(), ManualClock()
        store = self.open(tmp_path, disk, clock)
        store.append(message(0))
        disk.is_full = lambda path: True
        stored = 1
        try:
            while stored < 1000:
                store.append(message(stored))
                stored += 1
            raise AssertionError("a full disk accepts a thousand messages")
        except DiskFull:
            disk.heal()
        assert store.append(message(stored)).queue_offset == stored
        assert store.bodies("T", 0) == [body_of(i) for i in range(stored + 1)]
