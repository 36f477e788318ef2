"""The faults of the machine: its clock, its disk, its power, and the ends of the process at failpoints."""

from __future__ import annotations

import errno
from random import Random
from typing import Final

from wheelmq.testing.disk import Call, SimulatedDisk
from wheelmq.testing.simulation.times import CLOCK_ERROR_MS_MAX, HOUR_MS
from wheelmq.testing.simulation.world import World
from wheelmq.testing.stops import Stops

OF_DISK_ORDER: Final = frozenset(
    (
        "block.checkpoint",
        "block.synced",
        "checkpoint.before",
        "checkpoint.written",
        "delay_offsets.written",
        "flush.log_synced",
        "mark.before",
        "mark.written",
        "replace.renamed",
        "replace.written",
        "snapshot.before",
        "snapshot.written",
    )
)
"""Failpoints between two writes whose order on disk matters. A power cut there shows a wrong order."""


class Faults:
    def __init__(self, world: World, disk: SimulatedDisk, stops: Stops, seed: int) -> None:
        self._world = world
        self._disk = disk
        self._stops = stops
        self._clock_error_ms = 0
        self._by_hours = Random(f"hours of {seed}").random() < 0.2
        """Whether the clock is also set by hours. It has a generator of its own, so that other runs do not change."""
        self._full_until = 0
        """The step in which a full disk gets room again; 0 if the disk has room."""
        self._power_was_cut = False
        self._step = 0

    def begin_step(self, step: int) -> None:
        self._step = step
        if self._full_until and step >= self._full_until:
            self._disk.is_full = lambda path: False
            self._full_until = 0

    @property
    def disk_is_full(self) -> bool:
        return self._full_until > 0

    def heal(self) -> None:
        self._disk.heal()
        self._full_until = 0

    def end_hours(self) -> None:
        """Set the clock back if it was set by hours. Otherwise some messages would be due an hour later."""
        if self._by_hours:
            self._world.harness.clock.step(-self._clock_error_ms)

    def take_power_cut(self) -> bool:
        was_cut, self._power_was_cut = self._power_was_cut, False
        return was_cut

    def set_the_clock(self) -> None:
        """Set the wall clock, in some runs by an hour more.

        The total error stays below the difference between the wheel's length and the longest delay.
        """
        r = self._world.randomness
        ms = r.choice((r.randint(-3000, 3000), -20_000, 15_000))
        if self._by_hours and r.random() < 0.5:
            ms = r.choice((-HOUR_MS, HOUR_MS))
        if abs(self._clock_error_ms + ms) <= CLOCK_ERROR_MS_MAX + self._by_hours * HOUR_MS:
            self._clock_error_ms += ms
            self._world.harness.clock.step(ms)

    def pages_go_to_disk(self) -> None:
        self._disk.write_back(self._world.randomness, self._world.randomness.random())

    def a_call_will_fail(self) -> None:
        r = self._world.randomness
        kinds = r.choice((tuple(Call), (Call.SYNC,), (Call.ALLOCATE, Call.MAP), (Call.REPLACE,), (Call.SYNC_FOLDER,)))
        nth = r.randint(1, r.choice((2, 12)))
        self._disk.fail_call(nth, OSError(errno.EIO, "the disk does not answer"), kinds)

    def disk_fills_up(self) -> None:
        self._disk.is_full = lambda path: True
        self._full_until = self._step + self._world.randomness.randint(1, 12)

    def files_expire(self) -> None:
        """Set the disk's used share: at 0.86 files without pending messages expire; at 0.95 sends are rejected too."""
        self._disk.used = self._world.randomness.choice((0.0, 0.86, 0.86, 0.95))

    def will_die(self) -> None:
        """Have the broker killed: soon, or at a failpoint whose name was passed. So rare ones are met as often.

        Half of the named ones are between two writes to disk.
        """
        r, passed = self._world.randomness, sorted(set(self._stops.passed))
        of_order = [name for name in passed if name in OF_DISK_ORDER]
        if passed and r.random() < 0.5:
            self._stops.arm_in(r.choice(of_order if of_order and r.random() < 0.5 else passed))
        else:
            self._stops.arm(r.randint(0, 60))

    @staticmethod
    def power_share(point: str | None) -> float:
        """Return the share of kills at `point` that come with a power cut."""
        return 0.8 if point in OF_DISK_ORDER else 0.4

    def cut_power(self) -> None:
        world, r = self._world, self._world.randomness
        keep = r.choice((0.0, 0.5, r.random(), 1.0))
        world.trace.note(f"  power cut, the disk keeps {keep:.2f} of the pages")
        world.counts["power cuts"] += 1
        self._disk.cut_power(r, keep)
        self._power_was_cut = True
