"""The expected state, apart from the broker: a sorted list of pending messages, and a set of origins.

It knows the sends of clients and their answers. All else is a function of the records in the logs, so after a power cut
it starts again from the remaining ones.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from wheelmq.broker.broker import Broker
from wheelmq.broker.settings import FlushMode
from wheelmq.delay.blocks.block import Block
from wheelmq.delay.levels.table import DEFAULT_LEVELS, parse_levels
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.block import BLOCK_TOPIC
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.origin import (
    KIND_BLOCK,
    Origin,
    block_stream,
    is_level,
    origin_of,
    origin_stream,
    stream_kind,
    stream_number,
)
from wheelmq.formats.disk.parked import delay_facts, delete_key, due_of
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.units import LogPosition
from wheelmq.store.commit_log import CommitLog
from wheelmq.testing import invariants
from wheelmq.testing.disk import SimulatedDisk

LEVELS_MS = parse_levels(DEFAULT_LEVELS)

PAD = b"."
"""Fills the body of a message after its name."""


class SendAnswer(Enum):
    NONE = auto()
    STORED = auto()
    DURABLE = auto()
    REFUSED = auto()


@dataclass(slots=True)
class Sent:
    """A message that was sent. `name` is unique; several messages may share a `key`."""

    name: bytes
    key: str
    topic: str
    queue_id: int
    """-1 if the broker may choose."""
    due_ms: int | None
    """None for a message without a delay."""
    answer: SendAnswer = SendAnswer.NONE
    sent_ms: int = 0
    """The broker's time at the send."""
    level: int = 0
    """The delay level; 0 for none."""


class Entry(NamedTuple):
    """One record of the log, or of a block's log."""

    position: int
    size: int
    crc: int
    topic: str
    queue_id: int
    queue_offset: int
    store_ms: int
    name: bytes
    settles: int
    """Origin of the message that it settles; -1 for none."""
    parks: int
    """Origin of the message or cancel that it parks; 0 for none."""
    due_ms: int
    """Due time of the message that it parks; 0 for none."""
    cancels: str
    """The key of the message that it cancels; empty for none."""
    left_ms: int
    """The time of its release; 0 if it was not parked."""

    @property
    def end(self) -> int:
        return self.position + self.size

    @property
    def is_in_block(self) -> bool:
        return stream_kind(origin_stream(Origin(self.parks))) == KIND_BLOCK


@dataclass
class _State:
    entries: list[Entry] = field(default_factory=list)
    by_position: dict[int, Entry] = field(default_factory=dict)
    queues: dict[tuple[str, int], list[Entry]] = field(default_factory=dict)
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    """(due time, name) of pending messages, sorted."""
    origins: dict[int, Entry] = field(default_factory=dict)
    """All parked messages, also settled ones; those of the log in the order of their positions."""
    in_blocks: dict[int, Entry] = field(default_factory=dict)
    """The messages of `origins` that are or were in a block."""
    settled: dict[int, int] = field(default_factory=dict)
    """The position of the record that settles each message, by origin."""
    delivered: dict[bytes, Entry] = field(default_factory=dict)
    cancelled: dict[bytes, Entry] = field(default_factory=dict)


class Oracle:
    """Checks each new fact by assertions. The text of an error names the broken rule."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self.sent: dict[bytes, Sent] = {}
        self.firm_cancels: set[bytes] = set()
        """Names of messages whose cancel was acknowledged as on disk."""
        self._seen_to = LogPosition(0)
        self._seen_of_block: Counter[int] = Counter()
        """The end of the part that was read of each block's log, by block number."""
        self._now_ms = 1 << 62
        self._between: tuple[int, int] | None = None
        """The time span in which the observed records were written; None outside of `observe`."""
        self._state = _State()

    # Answers to clients --------------------------------------------------------------------------------------------

    def is_firm(self, broker: Broker) -> bool:
        """Return whether the answers of `broker` promise that messages stay."""
        return broker.parts.settings.flush.mode is FlushMode.SYNC

    def stored(self, sent: Sent, position: int, broker: Broker, *, durable: bool) -> None:
        """Note that `sent` was acknowledged at `position` (for a block, its origin), on disk if `durable`."""
        entry = self._state.by_position.get(position) or self._state.in_blocks.get(position)
        assert entry is not None and entry.name == sent.name, f"{sent.name!r} is acknowledged and not at {position}"
        sent.answer = SendAnswer.DURABLE if durable else SendAnswer.STORED
        if durable:
            self._must_be_on_disk(entry, broker)

    def refused(self, sent: Sent) -> None:
        sent.answer = SendAnswer.REFUSED
        assert sent.name not in self.names_in_log(), f"{sent.name!r} is refused and stored"

    def cancelled(self, key: str, broker: Broker, *, durable: bool) -> None:
        """Note the answer to a cancel: messages with `key` were pending and are cancelled."""
        found = [entry for name, entry in self._state.cancelled.items() if self.key_of(name) == key]
        assert found, f"{key} is told to be cancelled, and nothing of that name is"
        if durable:
            for entry in found:
                self._must_be_on_disk(entry, broker)
            self.firm_cancels |= {name for name in self._state.cancelled if self.key_of(name) == key}

    def not_cancelled(self, names: set[bytes]) -> None:
        """Note the answer to a cancel: no message with its key was pending, including `names`."""
        waits = names & {name for _, name in self._state.pending}
        assert not waits, f"{waits} wait, and a cancel was told that there is nothing to cancel"

    def _must_be_on_disk(self, entry: Entry, broker: Broker) -> None:
        files = broker.parts.store.log.files
        if entry.is_in_block:
            block = broker.parts.blocks.get(entry.queue_id)
            if block is None:
                assert entry.parks in self._state.settled, f"{entry.name!r} waits, and its block is gone"
                return
            files = block.log.files
        if entry.position < files.start:
            return
        at = entry.position % files.file_bytes
        path = files.file_at(entry.position).path
        if entry.is_in_block and not path.exists():  # the process died while it removed the block
            assert entry.parks in self._state.settled, f"{entry.name!r} waits, and its block is removed"
            return
        assert self._disk.holds(path, at, at + entry.size), f"{entry.name!r} is told to be on disk and is not"

    # The log -------------------------------------------------------------------------------------------------------

    def observe(self, broker: Broker, now_ms: int) -> None:
        """Read the new records. Blocks come first, because records of the log may settle their messages."""
        log = broker.parts.store.log
        self._between = min(self._now_ms, now_ms), now_ms
        self._now_ms = now_ms
        assert log.start <= self._seen_to, f"the log begins at {log.start}, and was read to {self._seen_to}"
        for block in broker.parts.blocks:
            position = LogPosition(self._seen_of_block[block.number])
            for record in invariants.records_from(block.log, position):
                entry = _entry_in_block(block, record)
                self._forget_expired(entry.parks, log.start)
                self._park(entry)
            self._seen_of_block[block.number] = block.log.end
        for record in invariants.records_from(log, self._seen_to):
            entry = _entry_of(log, record)
            assert entry.left_ms <= now_ms, f"{entry.name!r} left at a time that has not come"
            self._take(entry)
        self._between = None
        self._seen_to = log.end

    def recovered(self, broker: Broker, now_ms: int, *, power_was_cut: bool) -> int:
        """Check the log and the blocks after a start: they lost only what a power cut may take. Returns the loss."""
        log = broker.parts.store.log
        assert not log.damaged, f"damaged records at {sorted(log.damaged)}"
        before = self._state.entries
        kept = next((i for i, entry in enumerate(before) if not self._is_there(entry, broker)), len(before))
        gone = before[kept:]
        assert power_was_cut or not gone, f"{len(gone)} records are gone, from {gone[0]} on, and power was not cut"
        for entry in gone:
            self._check_loss(entry)
        in_blocks = self._state.in_blocks
        if gone:
            self._state = _State()
            for entry in in_blocks.values():
                self._park(entry)
            for entry in before[:kept]:
                self._take(entry)
        self._forget_lost_of_blocks(broker, power_was_cut=power_was_cut)
        self._seen_to = LogPosition(max(log.start, before[kept - 1].end if kept else 0))
        self.observe(broker, now_ms)
        later = (entry for entry in self._state.entries[kept:] if entry.settles < 0 and not self._returns(entry))
        fresh = [entry for entry in later if self._is_of_client(entry)]
        assert not fresh, f"a start released nothing, and there are records that were not there: {fresh}"
        return len(gone)

    def _check_loss(self, entry: Entry) -> None:
        """Check that a stop may take this record."""
        if entry.settles < 0 and not entry.cancels:
            firm = self.sent[entry.name].answer is SendAnswer.DURABLE
            assert not firm, f"lost: {entry.name!r} was acknowledged as on disk"
        undone = entry.cancels and entry.settles >= 0 and self._state.origins[entry.settles].name
        assert undone not in self.firm_cancels, f"lost: the cancel of {undone!r} was acknowledged as on disk"

    def _returns(self, entry: Entry) -> bool:
        """Return whether the record was taken back before, and another broker had it."""
        return False

    def _is_of_client(self, entry: Entry) -> bool:
        """Return whether a client must have sent the record."""
        return True

    def _forget_lost_of_blocks(self, broker: Broker, *, power_was_cut: bool) -> None:
        """Check that blocks lost nothing, or in a power cut only unacknowledged messages. Forget the lost ones."""
        state = self._state
        found = {entry.parks: entry for block in broker.parts.blocks for entry in _entries_of(block)}
        for origin, entry in found.items():
            if origin not in state.origins and self._returns(entry):
                self._park(entry)
            assert state.in_blocks.get(origin) == entry, f"{entry.name!r} is in a block, and was not there"
        for origin, entry in list(state.in_blocks.items()):
            if origin in found or origin in state.settled:
                continue
            assert power_was_cut, f"{entry.name!r} waits, and is gone from its block, and power was not cut"
            self._check_loss(entry)
            del state.in_blocks[origin], state.origins[origin]
            del state.pending[bisect_left(state.pending, (entry.due_ms, entry.name))]
        self._seen_of_block = Counter({block.number: block.log.end for block in broker.parts.blocks})

    @staticmethod
    def _is_there(entry: Entry, broker: Broker) -> bool:
        log = broker.parts.store.log
        if entry.position < log.start:
            return True
        if entry.end > log.end:
            return False
        at = entry.position % log.files.file_bytes
        return zlib.crc32(log.files.file_at(entry.position).view[at : at + entry.size]) == entry.crc

    def _take(self, entry: Entry) -> None:
        state = self._state
        queue = state.queues.setdefault((entry.topic, entry.queue_id), [])
        assert entry.queue_offset == len(queue), (
            f"{entry.name!r} has queue offset {entry.queue_offset}, not {len(queue)}"
        )
        assert not state.entries or entry.store_ms >= state.entries[-1].store_ms, (
            f"{entry.name!r}: store times decrease"
        )
        state.entries.append(entry)
        state.by_position[entry.position] = entry
        queue.append(entry)
        if entry.settles >= 0:
            self._settle(entry)
        if entry.parks:
            if not entry.cancels:
                self._park(entry)
        else:
            self._deliver(entry)

    def _settle(self, entry: Entry) -> None:
        state = self._state
        assert entry.settles in state.origins, f"{entry.name!r} settles {entry.settles}, where nothing is parked"
        assert entry.settles not in state.settled, f"{entry.name!r} settles {entry.settles} once more"
        parked = state.origins[entry.settles]
        if entry.cancels:
            sent = self.sent[parked.name]
            assert entry.cancels == delete_key(sent.topic, sent.key), f"{entry.cancels} cancels {sent.name!r}"
            state.cancelled[parked.name] = entry
        else:
            assert entry.name == parked.name, f"{entry.name!r} settles {parked.name!r}"
        state.settled[entry.settles] = entry.position
        del state.pending[bisect_left(state.pending, (parked.due_ms, parked.name))]

    def _forget_expired(self, origin: int, log_start: LogPosition) -> None:
        """Forget the former message of an origin in a block, once the log no longer has the record that settled it.

        The number of its block is free then.
        """
        state = self._state
        if state.settled.get(origin, log_start) < log_start:
            del state.settled[origin], state.origins[origin], state.in_blocks[origin]

    def _park(self, entry: Entry) -> None:
        sent = self._known(entry)
        if is_level(origin_stream(Origin(entry.parks))):
            self._take_level_start(sent, entry)
        assert entry.due_ms == sent.due_ms, f"{entry.name!r} is parked for {entry.due_ms}, not {sent.due_ms}"
        assert entry.parks not in self._state.origins, f"{entry.name!r} has an origin that another had before"
        self._state.origins[entry.parks] = entry
        if entry.is_in_block:
            self._state.in_blocks[entry.parks] = entry
        insort(self._state.pending, (entry.due_ms, entry.name))

    def _take_level_start(self, sent: Sent, entry: Entry) -> None:
        """Take the store time as the start of a level's delay, because a send may wait for its new topic.

        The store time of a record does not go back with the clock. Its due time is then the one that it names.
        """
        delay_ms = LEVELS_MS[sent.level - 1] if sent.level else 0
        from_ms, to_ms = self._between or (0, 0)
        starts_ms = entry.due_ms - delay_ms
        if sent.level and (starts_ms == entry.store_ms or from_ms <= starts_ms <= to_ms):
            sent.due_ms = entry.due_ms

    def _deliver(self, entry: Entry) -> None:
        sent = self._known(entry)
        assert entry.name not in self._state.delivered, f"{entry.name!r} is delivered twice"
        assert entry.topic == sent.topic, f"{entry.name!r} is delivered to {entry.topic}"
        assert sent.queue_id in (-1, entry.queue_id), f"{entry.name!r} is delivered to queue {entry.queue_id}"
        if (
            entry.settles < 0
            and not sent.level
            and sent.due_ms is not None
            and sent.sent_ms < sent.due_ms <= entry.store_ms
        ):
            # The send waited for its topic until its due time, so the broker did not park it.
            parked = [origin for origin, other in self._state.origins.items() if other.name == entry.name]
            assert not parked, f"{entry.name!r} is parked at {parked}, and delivered by itself"
            sent.due_ms = None
        assert (entry.settles >= 0) == (sent.due_ms is not None), f"{entry.name!r}: {sent}, {entry}"
        if sent.due_ms is not None and is_level(origin_stream(Origin(entry.settles))):
            self._must_not_be_early(entry, sent.due_ms)
        else:
            early = (sent.due_ms or 0) - entry.left_ms
            assert sent.due_ms is None or early <= 0, f"{entry.name!r} left {early} ms early"
        self._state.delivered[entry.name] = entry

    def _must_not_be_early(self, entry: Entry, due_ms: int) -> None:
        """Check that a level's message was due, or its due time was further off than the level's delay.

        Its record does not carry the time of its release.
        """
        if self._between is not None:
            delay_ms = LEVELS_MS[stream_number(origin_stream(Origin(entry.settles))) - 1]
            from_ms, to_ms = self._between
            assert due_ms <= to_ms or due_ms > from_ms + delay_ms, f"{entry.name!r} left {due_ms - to_ms} ms early"

    def _known(self, entry: Entry) -> Sent:
        sent = self.sent.get(entry.name)
        assert sent is not None, f"{entry.name!r} was sent by nobody"
        assert sent.answer is not SendAnswer.REFUSED, f"{entry.name!r} was refused"
        return sent

    # Queries -------------------------------------------------------------------------------------------------------

    def key_of(self, name: bytes) -> str:
        return self.sent[name].key

    def names_in_log(self) -> set[bytes]:
        return set(self._state.delivered) | {entry.name for entry in self._state.origins.values()}

    @property
    def pending(self) -> list[tuple[int, bytes]]:
        """(due time, name) of pending messages, sorted."""
        return self._state.pending

    @property
    def delivered(self) -> dict[bytes, Entry]:
        return self._state.delivered

    @property
    def delivered_from_blocks(self) -> int:
        return sum(
            stream_kind(origin_stream(Origin(max(0, one.settles)))) == KIND_BLOCK for one in self.delivered.values()
        )

    @property
    def records(self) -> int:
        return len(self._state.entries)

    def queue(self, topic: str, queue_id: int) -> list[Entry]:
        """Return the records of a queue from queue offset 0 on, including expired ones."""
        return self._state.queues.get((topic, queue_id), [])

    def check_nothing_that_waits_is_gone(self, broker: Broker) -> None:
        """Check I7: no file and no block is deleted while one of its messages is pending."""
        start = broker.parts.store.log.start
        for entry in self._state.origins.values():
            is_there = (
                broker.parts.blocks.get(entry.queue_id) is not None if entry.is_in_block else entry.position >= start
            )
            assert is_there or entry.parks in self._state.settled, (
                f"{entry.name!r} waits in {entry.topic}/{entry.queue_id} at {entry.position}, and is gone"
            )


def _entries_of(block: Block) -> Iterator[Entry]:
    return (_entry_in_block(block, record) for record in invariants.records_from(block.log, LogPosition(0)))


def _entry_in_block(block: Block, record: Record) -> Entry:
    assert (record.message.topic, record.message.queue_id) == (BLOCK_TOPIC, block.number), record
    origin = origin_of(block_stream(block.number), record.queue_offset)
    due_ms = due_of(record.message.properties, record.store_ms)
    return _entry_of(block.log, record)._replace(parks=origin, due_ms=due_ms)


def _entry_of(log: CommitLog, record: Record) -> Entry:
    message = record.message
    at = record.position % log.files.file_bytes
    crc = zlib.crc32(log.files.file_at(record.position).view[at : at + record.size])
    facts = delay_facts(message.topic, message.queue_id, message.properties, record.store_ms)
    cancels = message.properties.get(props.TIMER_DEL_UNIQKEY, "") if message.topic == TIMER_TOPIC else ""
    return Entry(
        position=record.position,
        size=record.size,
        crc=crc,
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=record.queue_offset,
        store_ms=record.store_ms,
        name=message.body.partition(PAD)[0],
        settles=facts.settles or -1,
        parks=origin_of(facts.stream, record.queue_offset) if facts.stream else 0,
        due_ms=0 if cancels or not facts.stream else facts.due_ms or record.store_ms + LEVELS_MS[message.queue_id],
        cancels=cancels,
        left_ms=int(message.properties.get(props.TIMER_DEQUEUE_MS, "0")),
    )
