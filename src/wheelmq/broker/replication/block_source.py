"""The blocks of a master for its replicas: what each replica has, and the next parts for it.

Messages in blocks are not in the commit log, so the HA port does not bring them. A replica requests them. Its request
carries the number of units that it has of each changed block, which is also its acknowledgement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

import numpy as np

from wheelmq.broker.connection import Connection, peer_text
from wheelmq.broker.holds import Holds
from wheelmq.broker.replication.replicas import Replicas
from wheelmq.broker.replication.settings import ReplicationSettings
from wheelmq.delay.blocks.block import Block
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.numbers import NUMBER_MAX
from wheelmq.delay.blocks.places import HeldBlock
from wheelmq.delay.done import DoneBits
from wheelmq.formats.disk.block import FLAG_DONE
from wheelmq.formats.disk.origin import block_stream
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.block_replication import BlockPart, BlockPlace, BlockVerdict, PartKind, VerdictKind
from wheelmq.store.mapped import HeldFiles
from wheelmq.system.clock import Clock

log = logging.getLogger(__name__)

PART_UNITS_MAX: Final = 4096
PARTS_MAX: Final = 256
"""Parts in one answer. A new replica gets many blocks with few messages each."""
CHECK_MS: Final = 1000
"""Time between two checks for silent replicas."""


class HeldPart(NamedTuple):
    """A part whose records are still to be read. They may be read off the event loop."""

    part: BlockPart
    files: HeldFiles | None
    size: int

    def read(self) -> bytes:
        if self.files is None:
            return self.part.pack()
        file, at = self.files.file_at(self.part.position), self.part.position % self.files.file_bytes
        file.populate(at, at + self.size)
        return self.part._replace(data=file.view[at : at + self.size]).pack()


class BlockSession:
    """One replica that copies the blocks, over one connection."""

    def __init__(self, connection: Connection, session_id: int, replica_id: int, now_ms: int) -> None:
        self.connection = connection
        self.id = session_id
        self.replica_id = replica_id
        self.heard_ms = now_ms
        self.is_complete = False
        """Whether the replica has named all of its blocks."""
        self.sent: dict[int, int] = {}
        """Units that were sent, by block number."""
        self.acked: dict[int, int] = {}
        """Units that the replica has, by block number."""
        self.fresh: dict[int, None] = {}
        """Numbers of blocks that may have more, or that are removed."""
        self._all_in_answer: int | None = None
        self._reached: int | None = None
        """`Blocks.bytes` at a time of which the replica has all messages; None before it has caught up once."""

    def note_answer(self, blocks_bytes: int) -> None:
        """Note that an answer was made, with all messages up to now if nothing is fresh."""
        self._all_in_answer = None if self.fresh else blocks_bytes

    def note_request(self) -> None:
        """Note a request. It means that the replica has the messages of the last answer."""
        if self._all_in_answer is not None:
            self._reached = self._all_in_answer

    def is_behind(self, blocks_bytes: int, gap_bytes_max: int) -> bool:
        return self._reached is None or blocks_bytes - self._reached > gap_bytes_max


class BlockSource:
    """The replicas that copy the blocks of this broker."""

    def __init__(
        self,
        blocks: Blocks,
        done: DoneBits,
        replicas: Replicas,
        holds: Holds,
        settings: ReplicationSettings,
        clock: Clock,
    ) -> None:
        self.blocks = blocks
        self._done = done
        self._replicas = replicas
        self._holds = holds
        self._settings = settings
        self._clock = clock
        self._by_connection: dict[int, BlockSession] = {}
        self._last_id = 0

    @property
    def sessions(self) -> Collection[BlockSession]:
        return self._by_connection.values()

    def __len__(self) -> int:
        return len(self._by_connection)

    # Checks --------------------------------------------------------------------------------------------------------

    def check_job(self, places: list[BlockPlace]) -> Callable[[], list[BlockVerdict]]:
        """Return the job that finds how far the blocks of a replica agree. It may run off the event loop."""
        held = []
        for place in places:
            block = self.blocks.get(place.number)
            held.append(None if block is None or self.blocks.is_going(block) else HeldBlock(block))

        def job() -> list[BlockVerdict]:
            return [
                BlockVerdict(place.number, VerdictKind.GONE) if one is None else one.verdict(place)
                for one, place in zip(held, places, strict=True)
            ]

        return job

    # Sessions ------------------------------------------------------------------------------------------------------

    def open(self, connection: Connection, replica_id: int) -> BlockSession:
        """Begin a session, in place of an earlier one of the connection."""
        self._last_id += 1
        session = BlockSession(connection, self._last_id, replica_id, self._clock.monotonic_ms())
        self._by_connection[id(connection)] = session
        return session

    def find(self, connection: Connection, session_id: int) -> BlockSession | None:
        session = self._by_connection.get(id(connection))
        return session if session is not None and session.id == session_id else None

    def lose(self, connection: Connection) -> None:
        """Forget the session of a connection."""
        session = self._by_connection.pop(id(connection), None)
        if session is not None:
            log.warning("the replica at %s copies the blocks no more", peer_text(connection))

    def take_progress(self, session: BlockSession, progress: list[tuple[int, int]], *, is_complete: bool) -> bool:
        """Take the units that a replica has. Returns False if it claims units that this broker cannot have."""
        session.heard_ms = self._clock.monotonic_ms()
        for number, units in progress:
            if not 0 < number <= NUMBER_MAX:
                return False
            block = self.blocks.get(number)
            if block is not None and not 0 <= units <= block.queue.end:
                return False
            session.acked[number] = units
            if not session.is_complete:
                session.sent[number] = units
            elif block is None:
                del session.acked[number]
        if session.is_complete:
            session.note_request()
        elif is_complete:
            self._complete(session)
        return True

    def _complete(self, session: BlockSession) -> None:
        session.is_complete = True
        for block in self.blocks:
            if session.sent.get(block.number, 0) < block.queue.end:
                session.fresh[block.number] = None
        for number in [number for number in session.sent if self.blocks.get(number) is None]:
            session.fresh[number] = None
        log.info("the replica at %s copies the blocks", peer_text(session.connection))

    def push(self) -> None:
        """Answer the replicas that wait for new messages, or for the removal of a block."""
        if not self.blocks.changed:
            return
        changed, self.blocks.changed = self.blocks.changed, set()
        for session in list(self.sessions):
            if session.is_complete:
                for number in changed:
                    session.fresh[number] = None
                self._holds.wake(session)

    def tick(self, now_ms: int) -> None:
        """Answer waiting replicas, and forget the silent ones."""
        self.push()
        for session in list(self.sessions):
            if now_ms - session.heard_ms >= self._settings.heartbeat_ms + self._settings.silence_ms_max:
                self.lose(session.connection)

    def next_ms(self, now_ms: int) -> int | None:
        """Return when `tick` has work; None without a replica."""
        if not self._by_connection:
            return None
        return now_ms if self.blocks.changed else now_ms + CHECK_MS

    # Parts ---------------------------------------------------------------------------------------------------------

    def next_parts(self, session: BlockSession, bytes_max: int) -> list[HeldPart]:
        """Return the next parts for a replica, with about `bytes_max` bytes of records. They count as sent."""
        parts: list[HeldPart] = []
        left = bytes_max
        while session.fresh and left > 0 and len(parts) < PARTS_MAX:
            number = next(iter(session.fresh))
            block = self.blocks.get(number)
            if block is None or self.blocks.is_going(block):
                del session.fresh[number]
                if block is None and session.sent.pop(number, None) is not None:
                    session.acked.pop(number, None)
                    parts.append(HeldPart(BlockPart(PartKind.GONE, number), None, 0))
                continue
            first = session.sent.get(number, 0)
            if first >= block.queue.end:
                del session.fresh[number]
                continue
            part = self._part(block, first, left)
            session.sent[number] = first + len(part.part.units)
            left -= part.size + part.part.units.nbytes
            parts.append(part)
        session.note_answer(self.blocks.bytes)
        return parts

    def _part(self, block: Block, first: int, bytes_max: int) -> HeldPart:
        """Return the part of a block from unit `first` on, with at least one message if there is one."""
        units = block.queue.read(first, PART_UNITS_MAX).copy()
        named = np.flatnonzero(units["size"])
        done = self._done.of(block_stream(block.number)).between(first, first + len(units)) & (units["size"] > 0)
        if block.set_aside:
            done &= ~np.isin(first + np.arange(len(units)), list(block.set_aside))
        units["flags"] |= np.where(done, FLAG_DONE, 0)
        span = PartKind.UNITS, block.number, block.start_ms, block.end_ms, first
        if not len(named):
            return HeldPart(BlockPart(*span, units), None, 0)
        positions = units["position"][named].astype(np.int64)
        start = int(positions[0])
        ends = positions + units["size"][named]
        file_end = start - start % block.log.files.file_bytes + block.log.files.file_bytes
        count = max(1, int(np.searchsorted(ends, min(start + bytes_max, file_end), "right")))
        stop = int(named[count]) if count < len(named) else len(units)
        size = int(ends[count - 1]) - start
        files = HeldFiles(block.log.files, start, start + size - 1)
        return HeldPart(BlockPart(*span, units[:stop], LogPosition(start)), files, size)

    # Progress ------------------------------------------------------------------------------------------------------

    def confirmed(self, number: int) -> int:
        """Return the number of units of a block that enough replicas have. Connections of one replica count once.

        Without a replica that is needed, these are all units.
        """
        required = self._replicas.required
        if required:
            sessions = self._by_id()
            found = [sessions[one].acked.get(number, 0) if one in sessions else 0 for one in required]
            return min(found)
        needed, units = self._replicas.needed_acks, dict[int, int]()
        if not needed:
            block = self.blocks.get(number)
            return 0 if block is None else int(block.queue.end)
        for session in self.sessions:
            acked = session.acked.get(number, 0)
            units[session.replica_id] = max(acked, units.get(session.replica_id, 0))
        if needed > len(units) or not self._replicas.may_acknowledge():
            return 0
        return sorted(units.values(), reverse=True)[needed - 1]

    @property
    def are_available(self) -> bool:
        """Whether enough replicas copy the blocks, and are not too far behind."""
        required = self._replicas.required
        if required is not None:
            return all(self.is_copied_by(one) for one in required)
        reach = self.blocks.bytes, self._settings.gap_bytes_max
        ids = {one.replica_id for one in self.sessions if one.is_complete and not one.is_behind(*reach)}
        return len(ids) >= self._replicas.needed_acks

    def _by_id(self) -> dict[int, BlockSession]:
        """Return the last session of each replica that has named its blocks, by its id."""
        return {session.replica_id: session for session in self.sessions if session.is_complete}

    def ends(self) -> dict[int, int]:
        """Return the number of units of each block that has some."""
        return {block.number: int(block.queue.end) for block in self.blocks if block.queue.end}

    def is_copied_by(self, replica_id: int) -> bool:
        """Return whether a replica copies the blocks, or there are none."""
        return replica_id in self._by_id() or not self.ends()

    def has_reached(self, replica_id: int, ends: dict[int, int]) -> bool:
        """Return whether a replica has this number of units of each block that still exists."""
        session = self._by_id().get(replica_id)
        left = {number: units for number, units in ends.items() if self.blocks.get(number) is not None}
        if session is None:
            return not left
        return all(session.acked.get(number, 0) >= units for number, units in left.items())

    def lacks(self) -> dict[int, int]:
        """Return the number of units that each replica lacks, by its id."""
        found: dict[int, int] = {}
        for session in self.sessions:
            if session.is_complete:
                units = sum(block.queue.end - session.acked.get(block.number, 0) for block in self.blocks)
                found[session.replica_id] = min(units, found.get(session.replica_id, units))
        return found
