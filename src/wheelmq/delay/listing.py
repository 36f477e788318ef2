"""List and count pending messages, many at a time, by due time and topic.

A page reads records only for due times and topics that neither timer log details nor units have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from wheelmq.delay import queue_listing
from wheelmq.delay.api import Generations, Integers, Wanted
from wheelmq.delay.blocks.search import END as END
from wheelmq.delay.pending_message import PendingMessage
from wheelmq.formats.disk.origin import INDEX_MASK, Origin, origin_of
from wheelmq.system.clock import Clock

PLACES_MAX: Final = 1 << 16
"""Places of one page that counts or chooses the soonest messages. It reads at most LOOKED_AT_MAX records."""

SLICE_S: Final = 0.005
"""After this time a page begins no other stream and reads no more records of a block."""

STEPS_PER_MESSAGE_MAX: Final = 4
"""With more steps per message than this, sorting the steps costs less than a counter for each step."""

STREAM_PLACES: Final = 50
"""Approximate cost of beginning another stream, in places."""

_NOTHING: Final = np.empty(0, np.int64)


class PendingPage(NamedTuple):
    """Pending messages, in the order of their origins."""

    origins: Integers
    due_ms: Integers
    next_place: Origin
    """The place at which the next page begins; `END` when this was the last."""


def read_page(generations: Generations, clock: Clock, place: int, wanted: Wanted, places: int = 0) -> PendingPage:
    """Return the pending messages from `place` on, of at most `places` places. 0 means LOOKED_AT_MAX.

    Places are origins, and 0 is the first. Topics whose names have the same Java hash count as one.
    """
    found = [(_NOTHING, _NOTHING)]
    most = left = places or queue_listing.LOOKED_AT_MAX
    until_s = clock.monotonic() + SLICE_S
    next_place = END
    for stream in generations.streams(wanted):
        if place >= origin_of(stream, INDEX_MASK):
            continue
        if left < most and (left <= 0 or clock.monotonic() >= until_s):
            next_place = origin_of(stream, 0)
            break
        generation = generations.of_stream(stream)
        queue = generation.queue_of(stream)
        first = max(0, place - origin_of(stream, 0), generations.done.of(stream).floor, queue.start)
        part = generation.find(stream, first, min(first + left, queue.end), wanted, until_s)
        found.append((origin_of(stream, 0) + part.indices, part.due_ms))
        if part.stop < queue.end:
            next_place = origin_of(stream, part.stop)
            break
        left -= max(0, part.stop - first) + STREAM_PLACES
    origins, due_ms = (np.concatenate(column) for column in zip(*found, strict=True))
    return PendingPage(origins, due_ms, next_place)


def lines(generations: Generations, seen: PendingPage, wanted: Wanted) -> Iterator[tuple[Origin, PendingMessage]]:
    """Yield the lines of a listing for the messages in a page, each with its place."""
    for origin in map(Origin, seen.origins.tolist()):
        record = generations.of(origin).record_of(origin)
        if record is not None:
            pending = generations.describe(origin, record)
            if wanted.topic in (None, pending.topic):
                yield origin, pending


def count_by(seen: PendingPage, step_ms: int) -> dict[int, int]:
    """Return the number of messages due in each step, by the start of the step. Steps are multiples of `step_ms`."""
    steps = seen.due_ms // step_ms
    if not len(steps):
        return {}
    first = int(steps.min())
    if int(steps.max()) - first > STEPS_PER_MESSAGE_MAX * len(steps):
        found, counts = np.unique(steps, return_counts=True)
    else:
        every = np.bincount(steps - first)
        found = np.flatnonzero(every)
        counts, found = every[found], found + first
    return dict(zip((found * step_ms).tolist(), counts.tolist(), strict=True))


def soonest(seen: PendingPage, before_ms: int, count: int | None) -> PendingPage:
    """Return the first `count` or all messages of a page that are due before `before_ms`, by due time."""
    chosen = np.flatnonzero(seen.due_ms < before_ms)
    if count is not None and len(chosen) > count:
        limit_ms = np.partition(seen.due_ms[chosen], count - 1)[count - 1]
        chosen = chosen[seen.due_ms[chosen] <= limit_ms]
    chosen = chosen[np.lexsort((seen.origins[chosen], seen.due_ms[chosen]))][:count]
    return PendingPage(seen.origins[chosen], seen.due_ms[chosen], seen.next_place)
