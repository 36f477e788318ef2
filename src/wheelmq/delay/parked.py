"""Find the record and the state of a parked message by its origin."""

from __future__ import annotations

import numpy as np

from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.pending_message import State
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.origin import (
    KIND_BLOCK,
    TIMER_STREAM,
    Origin,
    is_level,
    origin_index,
    origin_stream,
    stream_kind,
)
from wheelmq.formats.units import LogPosition, QueueOffset


def record_of(timer: Timer, blocks: Blocks, origin: Origin) -> Record | None:
    """Return the record of a parked message. Returns None when it has expired or is damaged."""
    is_in_block = stream_kind(origin_stream(origin)) == KIND_BLOCK
    return blocks.record_of(origin) if is_in_block else record_in_log(timer, origin)


def record_in_log(timer: Timer, origin: Origin) -> Record | None:
    """Return the record of a message of the timer queue or a level. Returns None when it has expired or is damaged."""
    queue, index = timer.queue_of(origin_stream(origin)), QueueOffset(origin_index(origin))
    if index < queue.start:  # the message was settled long ago, and its record has expired
        return None
    return timer.store.log.record_at(LogPosition(int(queue.read(index, 1)["position"][0])))


def state_of(timer: Timer, origin: Origin) -> State:
    """Return the state of a pending message."""
    return State.ARMED if timer.pending.armed.was_armed(np.array([origin]))[0] else place_of(timer, origin)


def place_of(timer: Timer, origin: Origin) -> State:
    """Return the state of a pending message that is not armed."""
    stream, index = origin_stream(origin), origin_index(origin)
    if stream != TIMER_STREAM:
        return State.LEVEL if is_level(stream) else State.BLOCK
    return State.INDEXED if index < timer.indexed_to else State.PARKED
