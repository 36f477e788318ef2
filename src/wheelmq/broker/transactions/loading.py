"""The transactions that a start finds pending in the half queue."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from wheelmq.broker.transactions import halves
from wheelmq.broker.transactions.pending import PendingHalves, Place
from wheelmq.broker.transactions.queue_records import queue_records
from wheelmq.formats.disk.properties import REAL_TOPIC
from wheelmq.formats.names import HALF_TOPIC
from wheelmq.formats.units import LogPosition
from wheelmq.store.store import Store

log = logging.getLogger(__name__)


class _Half(NamedTuple):
    place: Place
    topic: str


@dataclass
class Loaded:
    pending: PendingHalves
    topics: list[str] = field(default_factory=list)
    """The real topic of each pending message."""
    unwritten: list[int] = field(default_factory=list)
    """Queue offsets of ended half messages that no op message names."""


class Ends(Protocol):
    """The ended transactions that the log shows."""

    def ended_from(self, position: LogPosition) -> set[int]:
        """Return the log positions of ended half messages, from `position` on."""


def load(store: Store, first: int, in_ops: set[int], ends: Ends) -> Loaded:
    """Read the half queue from `first` on. `in_ops` are the queue offsets that op messages name.

    A half message that was put back may be in the queue twice after a stop. Then the last copy counts.
    """
    loaded = Loaded(PendingHalves(first))
    by_origin: dict[int, list[_Half]] = {}
    missing = []
    for offset, record in queue_records(store, HALF_TOPIC, first):
        if record is None:
            log.critical(
                "transactions: the half message at queue offset %d is no longer in the log, so its transaction "
                "cannot end",
                offset,
            )
            missing.append(offset)
            continue
        half = _Half(Place(offset, record.position), record.message.properties.get(REAL_TOPIC, ""))
        by_origin.setdefault(halves.origin_of(record), []).append(half)
    in_log = ends.ended_from(min((group[0].place.position for group in by_origin.values()), default=store.log.end))
    gone = set(missing)
    for origin, group in by_origin.items():
        *older, (place, topic) = group
        is_said = not in_ops.isdisjoint((origin, *(half.place.offset for half in group)))
        has_ended = is_said or any(half.place.position in in_log for half in group)
        gone.update(half.place.offset for half in older)
        if has_ended:
            gone.add(place.offset)
            if not is_said:
                loaded.unwritten.append(place.offset)
            continue
        loaded.topics.append(topic)
        if origin != place.offset:
            loaded.pending.move(origin, place)
    for offset in sorted(gone):
        loaded.pending.drop(offset)
    return loaded
