"""Messages in blocks, as queries by id and by key show them before their release.

The message id in a send's answer, and the position in the shown record, contain the message's origin in place of a log
position. The queue offset is the end of the queue, because no consumer can have the message yet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from wheelmq.broker.engine import Engine
from wheelmq.delay.blocks.search import END
from wheelmq.delay.delivery_state import KeyQuery
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record, encode_record
from wheelmq.formats.disk.origin import KIND_BLOCK, Origin, origin_stream, stream_kind
from wheelmq.formats.disk.parked import delete_key, key_hash
from wheelmq.formats.java import java_int
from wheelmq.formats.units import LogPosition, QueueOffset

log = logging.getLogger(__name__)

SEARCH_MS: Final = 1000
"""Milliseconds that a query waits for the search of blocks. The answer then has the messages found by that time."""
LOOKS_MAX: Final = 16
"""Maximum steps of one query's search. Each step reads at most 2 MiB of the blocks' logs."""


def is_in_block(offset: int) -> bool:
    """Return whether the offset in a message id is the origin of a message that was put into a block."""
    return stream_kind(origin_stream(Origin(offset))) == KIND_BLOCK


def view(engine: Engine, origin: Origin) -> bytes | None:
    """Return the record of a message that was put into a block; None if the block or the message does not exist."""
    record = engine.generations.of(origin).record_of(origin)
    return None if record is None else _shown(engine, origin, record)


def _shown(engine: Engine, origin: Origin, record: Record) -> bytes:
    properties = record.message.properties
    topic, queue_id = properties.get(props.REAL_TOPIC, ""), java_int(properties.get(props.REAL_QID, "")) or 0
    real_queue = engine.store.real_queue(properties)
    end = engine.store.queues[real_queue].end if real_queue >= 0 else QueueOffset(0)
    return encode_record(
        msgspec.structs.replace(record.message, topic=topic, queue_id=queue_id),
        props.encode(properties),
        queue_offset=end,
        position=LogPosition(origin),
        store_ms=record.store_ms,
        store_host=record.store_host,
    )


class KeySearch:
    """A search for pending messages in blocks that have a given topic and key, until `is_over`.

    The table of delete keys finds messages by their unique key at once. A word of KEYS is searched for in the logs of
    the blocks, off the loop.
    """

    def __init__(self, engine: Engine, asked: KeyQuery, *, is_unique: bool) -> None:
        self._engine = engine
        self._asked = asked
        self._looks = 0
        self.is_over = is_unique or not asked.key or not engine.block_parts.in_blocks.total
        hashed = key_hash(delete_key(asked.topic, asked.key))
        self._origins = {origin for origin in engine.timer.pending.keys.find(hashed) if is_in_block(origin)}
        if not self.is_over:
            self._begin_search(Origin(0))

    def _begin_search(self, place: Origin) -> None:
        self._looks += 1
        if self._looks > LOOKS_MAX or not self._engine.searches.begin(self._asked.key, place, self._take):
            self.is_over = True

    def _take(self, result: Any) -> None:
        if isinstance(result, BaseException):
            log.error("the search of the blocks for a key failed: %s", result)
            self.is_over = True
            return
        self._origins.update(result.origins)
        if result.next_place == END:
            self.is_over = True
        else:
            self._begin_search(result.next_place)

    def records(self, begin_ms: int, end_ms: int) -> Iterator[bytes]:
        """Yield the found records that were stored from `begin_ms` to `end_ms` and are pending, ordered by origin."""
        for origin in sorted(self._origins):
            generation = self._engine.generations.of(origin)
            record = None if origin in self._engine.timer.pending.done else generation.record_of(origin)
            if record is None or not begin_ms <= record.store_ms <= end_ms:
                continue
            if self._asked.has(record.message.properties):
                yield _shown(self._engine, origin, record)
