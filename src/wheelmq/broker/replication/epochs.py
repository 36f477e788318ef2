"""The epochs of a store: which master wrote which part of the log (RocketMQ: EpochFileCache).

Each start of a master after an unclean stop, and each promotion, begins an epoch at the end of the log. So two logs
agree up to the end of the last epoch that both have, with the same number and start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from random import Random
from typing import Final

from wheelmq.formats.disk.epochs import Epoch, EpochsUnreadable, decode_epochs, encode_epochs
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.units import LogPosition
from wheelmq.system.disk import Disk

log = logging.getLogger(__name__)

START_BITS: Final = 10
"""The low bits of an epoch's number count the unclean starts of one master."""
NONCE_BITS: Final = 8
"""The next bits are random. Without a controller, two slaves may be promoted at the same time."""
FIRST_WITHOUT_CONTROLLER: Final = 1 << START_BITS + NONCE_BITS
"""The least number of an epoch that no controller gave."""
NUMBER_MAX: Final = (1 << 31) - 1
"""The upper 13 bits count the promotions. So a promoted slave is later than its former master, which starts again."""


BEFORE_CONTROLLER: Final = 0
"""The epoch of all bytes from the time before the controller, which gives the numbers from 1 on."""


class Epochs:
    """The epochs of the log, in a file."""

    def __init__(self, disk: Disk, paths: StorePaths) -> None:
        """Load the file. Raises OSError for a file that cannot be read."""
        self._disk, self._path = disk, paths.epochs
        raw = disk.read(self._path)
        if raw is not None:
            disk.sync_folder(self._path.parent)  # a kill may have come before it
        try:
            self._epochs = [] if raw is None else decode_epochs(raw)
        except EpochsUnreadable as error:
            raise OSError(
                f"{self._path} is damaged: {error}. Put a good copy in its place, or remove it: then the store cannot "
                "follow a master, and replicas of this store begin again"
            ) from None

    @property
    def all(self) -> tuple[Epoch, ...]:
        return tuple(self._epochs)

    @property
    def last(self) -> Epoch | None:
        return self._epochs[-1] if self._epochs else None

    def last_before(self, position: LogPosition) -> Epoch | None:
        """Return the last epoch that begins before `position`; None without one."""
        return next((one for one in reversed(self._epochs) if one.start < position), None)

    def begin(self, number: int, start: LogPosition) -> None:
        """Begin an epoch at `start`, the end of the log, and write the file. Raises OSError.

        It replaces the epochs that have no bytes. After a power cut, the log may end before the start of some. The
        first election of a controller joins all earlier epochs into one, because
        their numbers exceed those of a controller.
        """
        last = self.last
        if last is not None and number < FIRST_WITHOUT_CONTROLLER <= last.number:
            self._epochs = [Epoch(BEFORE_CONTROLLER, self._epochs[0].start)]
            last = self.last
        assert last is None or number > last.number, (number, last)
        self._write([*(one for one in self._epochs if one.start < start), Epoch(number, start)])

    def follow(self, epochs: Sequence[Epoch]) -> None:
        """Take over the epochs of the master, which a replica has got. Raises OSError."""
        if list(epochs) != self._epochs:
            self._write(list(epochs))

    def next_for_start(self, randomness: Random) -> int:
        """Return a number for the epoch of a master that starts again. It is less than that of any later promotion.

        Only a controller gives its numbers, so a start without it does not continue them.
        """
        last = self.last
        if last is None or last.number < FIRST_WITHOUT_CONTROLLER:
            return self.next_for_promotion(randomness)
        return min(last.number + 1, NUMBER_MAX)

    def next_for_promotion(self, randomness: Random) -> int:
        """Return a number for the epoch of a new master. No other master chooses it."""
        last = self.last
        term = (0 if last is None else last.number >> START_BITS + NONCE_BITS) + 1
        number = (term << NONCE_BITS | randomness.getrandbits(NONCE_BITS)) << START_BITS
        return min(number, NUMBER_MAX)

    def at(self, position: LogPosition) -> tuple[Epoch, LogPosition | None]:
        """Return the epoch of the byte at `position`, and the position at which it ends; None for the last one."""
        for i in range(len(self._epochs) - 1, -1, -1):
            if self._epochs[i].start <= position or i == 0:
                later = self._epochs[i + 1].start if i + 1 < len(self._epochs) else None
                return self._epochs[i], later
        raise LookupError("the store has no epochs")

    def cut(self, position: LogPosition) -> None:
        """Forget the epochs that begin at or after `position`, except the first one. Raises OSError."""
        kept = [one for i, one in enumerate(self._epochs) if i == 0 or one.start < position]
        if len(kept) < len(self._epochs):
            self._write(kept)

    def drop_before(self, position: LogPosition) -> None:
        """Forget the epochs that end at or before `position`, the start of the log. Raises OSError."""
        kept = [
            one
            for one, later in zip(self._epochs, [*self._epochs[1:], None], strict=True)
            if later is None or later.start > position
        ]
        if len(kept) < len(self._epochs):
            self._write(kept)

    def _write(self, epochs: list[Epoch]) -> None:
        self._disk.replace(self._path, encode_epochs(epochs), keep_previous=True)
        self._epochs = epochs


def consistent_point(
    own: Sequence[Epoch], own_end: LogPosition, masters: Sequence[Epoch], master_end: LogPosition
) -> LogPosition | None:
    """Return the position up to which two logs agree, or None if they have no epoch in common.

    The newest epoch that both have counts. Both logs have its bytes up to the smaller of its two ends.
    """
    starts = {one.number: (one.start, end) for one, end in _with_ends(masters, master_end)}
    for one, end in reversed(_with_ends(own, own_end)):
        start, masters_end = starts.get(one.number, (None, None))
        if start == one.start and masters_end is not None:
            return min(end, masters_end)
    return None


def _with_ends(epochs: Sequence[Epoch], end: LogPosition) -> list[tuple[Epoch, LogPosition]]:
    ends = [*(one.start for one in epochs[1:]), end]
    return list(zip(epochs, ends, strict=True))
