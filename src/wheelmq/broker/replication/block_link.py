"""The replica's side of the copy of blocks, without its socket: the next request, and the effect of each answer.

First the master checks how far each block agrees. A tail that the master does not have is cut off, for which the broker
must stop. Then the replica reads, and its next request acknowledges the parts that it has appended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from wheelmq.broker.engine import Engine
from wheelmq.delay.blocks.copies import BlockCopies, StreamOver
from wheelmq.delay.blocks.places import HeldBlock
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.block_replication import (
    BLOCK_PLACE,
    BLOCK_PROGRESS,
    PLACES_MAX,
    PROGRESS_MAX,
    BlockBytesWrong,
    BlockPart,
    BlockPlace,
    BlockVerdict,
    PartKind,
    VerdictKind,
    pack_all,
    read_parts,
    read_verdicts,
)
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import BlocksHeader, HeaderError, ReadBlocksHeader
from wheelmq.system.clock import Clock

log = logging.getLogger(__name__)

BYTES_MAX: Final = 1 << 20
"""Bytes of records that one answer should have."""
WAIT_MS: Final = 5000
"""Time that the master may hold a request."""
SLICE_S: Final = 0.005
"""Time for parts in one tick."""


class BlocksWrong(Exception):
    """The answer of the master cannot be followed. Begin again later."""


class BlockLink:
    """Copies the blocks of one master, whose last epoch is `epoch`. The logs of both must agree."""

    def __init__(
        self,
        engine: Engine,
        copies: BlockCopies,
        clock: Clock,
        *,
        replica_id: int,
        epoch: int,
    ) -> None:
        self._store = engine.store
        self._blocks = engine.blocks
        self._settlement = engine.block_parts.settlement
        self._role = engine.block_parts.role
        self._copies = copies
        copies.restart()
        self._clock = clock
        self._replica_id = replica_id
        self._epoch = epoch
        self._unchecked: dict[int, BlockPlace | None] = {
            block.number: None for block in self._blocks if not self._blocks.is_going(block)
        }
        """The places to check, by block number. None is the end of the block."""
        self._agreed: dict[int, int] = {}
        """Units up to which a block agrees, by number."""
        self._gone: dict[int, LogPosition] = {}
        """Blocks that the master does not have, with the end of its log at that time."""
        self._unreported: dict[int, None] = {}
        """Numbers of the blocks that the next request reports."""
        self._session = 0
        self._is_complete = False
        self.cuts: dict[int, int] | None = None
        """The units to keep, by block number. The broker must stop, cut the blocks, and start again."""
        self._when_applied: Callable[[], object] | None = None
        self._when_cut: Callable[[], object] | None = None

    # Requests ------------------------------------------------------------------------------------------------------

    def next_request(self) -> Command:
        """Return the next request. Its answer goes to `take`."""
        if self._unchecked:
            places = [self._place_of(number) for number in list(self._unchecked)[:PLACES_MAX]]
            return Command(code=RequestCode.WMQ_CHECK_BLOCKS, body=pack_all(BLOCK_PLACE, places))
        if not self._session:
            self._unreported = dict.fromkeys(self._agreed)
        numbers = list(self._unreported)[:PROGRESS_MAX]
        for number in numbers:
            del self._unreported[number]
        is_complete = not self._unreported
        ext = headers.write(
            ReadBlocksHeader(
                replica_id=self._replica_id,
                epoch=self._epoch,
                session=self._session,
                is_complete=is_complete,
                bytes_max=BYTES_MAX,
                timeout_ms=WAIT_MS,
            )
        )
        body = pack_all(BLOCK_PROGRESS, ((number, self._units(number)) for number in numbers))
        return Command(code=RequestCode.WMQ_READ_BLOCKS, ext=ext, body=body)

    def _place_of(self, number: int) -> BlockPlace:
        place, block = self._unchecked[number], self._blocks.get(number)
        if place is None:
            assert block is not None, "only a part of the master changes the blocks of a replica"
            place = self._unchecked[number] = HeldBlock(block).place()
        return place

    def _units(self, number: int) -> int:
        block = self._blocks.get(number)
        return 0 if block is None else block.queue.end

    # Answers -------------------------------------------------------------------------------------------------------

    def take(self, request: Command, answer: Command) -> None:
        """Take an answer. `poll` appends its parts. Raises BlocksWrong."""
        if answer.code != ResponseCode.SUCCESS:
            raise BlocksWrong(f"the master answered with code {answer.code}: {answer.remark}")
        try:
            header = headers.read(answer.ext, BlocksHeader)
            self._check(header)
            if request.code == RequestCode.WMQ_CHECK_BLOCKS:
                self._take_verdicts(read_verdicts(answer.body), LogPosition(header.log_end))
            else:
                self._session = header.session
                self._take_parts(list(read_parts(answer.body)), LogPosition(header.log_end))
        except (HeaderError, BlockBytesWrong) as error:
            raise BlocksWrong(f"the master's answer is not valid: {error}") from None

    def _check(self, header: BlocksHeader) -> None:
        own_bytes = self._blocks.settings.log_file_bytes
        if header.epoch != self._epoch:
            raise BlocksWrong(
                f"it has epoch {header.epoch}, and the master of the log has epoch {self._epoch}. If that stays so, "
                "they are two brokers: check ha_master_address"
            )
        if header.file_bytes != own_bytes:
            raise BlocksWrong(
                f"its block_log_file_bytes is {header.file_bytes}, and that of this replica is {own_bytes}. Start the "
                "replica with the value of the master, and without its folder scheduledtempdata"
            )

    def _take_verdicts(self, verdicts: list[BlockVerdict], log_end: LogPosition) -> None:
        for one in verdicts:
            place = self._unchecked.pop(one.number, None)
            block = self._blocks.get(one.number)
            if place is None or block is None:
                raise BlocksWrong(f"it has a verdict on block {one.number}, which was not asked for")
            match one.verdict:
                case VerdictKind.GONE:
                    self._gone[one.number] = log_end
                case VerdictKind.AGREES:
                    self._agreed[one.number] = place.units
                case _:
                    self._shorten(place, HeldBlock(block).place_up_to(one.last_index, one.epoch))
        if not self._unchecked:
            self._request_cuts()

    def _shorten(self, place: BlockPlace, shorter: BlockPlace) -> None:
        """Check a shorter part of a block next, or none of it."""
        if (shorter.last_index, shorter.units) >= (place.last_index, place.units):
            raise BlocksWrong(f"its verdict on block {place.number} names no earlier record")
        if shorter.last_index < 0:
            self._agreed[place.number] = 0
        else:
            self._unchecked[place.number] = shorter

    def _request_cuts(self) -> None:
        """Request a cut of each block with units that the master does not have."""
        cuts = {number: units for number, units in self._agreed.items() if units < self._units(number)}
        if cuts:
            log.warning("the master has other messages than this broker in %d blocks", len(cuts))
            self.cuts = cuts
            return
        for number in self._agreed:
            self._settlement.note_checked(number)

    def _take_parts(self, parts: list[BlockPart], log_end: LogPosition) -> None:
        for part in parts:
            if part.kind == PartKind.GONE:
                self._gone[part.number] = log_end
            elif part.kind == PartKind.UNITS:
                self._copies.add(part, log_end)
                self._unreported[part.number] = None
            else:
                raise BlocksWrong(f"it sent a part of kind {part.kind}")

    # Work ----------------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `poll` can do something without another event."""
        if self._copies.can_continue or (self._when_applied is not None and not len(self._copies)):
            return True
        return bool(self._ending())

    def poll(self) -> None:
        """Append parts, and let blocks end that the master has removed, as far as the log has come."""
        for number in self._ending():
            self._end_block(number)
        if self.cuts is None:
            self._copies.poll(self._clock.monotonic() + SLICE_S)
            if isinstance(self._copies.failure, StreamOver):
                log.warning("%s: this broker starts again", self._copies.failure)
                self.cuts = {}
        if self._when_applied is not None and (
            not len(self._copies) or self.failure is not None or self.cuts is not None
        ):
            applied, self._when_applied = self._when_applied, None
            applied()
        if self.cuts is not None and self._when_cut is not None:
            self._when_cut()

    def _ending(self) -> list[int]:
        """Return the blocks that the master has removed, if the log has come to the end of the master's log then."""
        if self._unchecked:
            return []  # all cuts are made at once
        return [number for number, log_end in self._gone.items() if log_end <= self._store.log.end]

    def _end_block(self, number: int) -> None:
        """Let a block end. The log has the records that settled its messages, if the master had them."""
        del self._gone[number]
        block = self._blocks.get(number)
        if block is not None and not self._role.note_gone_at_master(block):
            log.warning("the master has no block %s, and messages of it are pending here", block.paths.folder.name)
            self.cuts = {**(self.cuts or {}), number: 0}

    @property
    def failure(self) -> Exception | None:
        """The reason why a part cannot be appended."""
        return self._copies.failure

    def when_applied(self, call: Callable[[], object]) -> None:
        """Call `call` in a `poll`, once all parts are appended, or once that fails."""
        self._when_applied = call

    def when_cut(self, call: Callable[[], object]) -> None:
        """Call `call` in each `poll` while blocks must be cut."""
        self._when_cut = call
