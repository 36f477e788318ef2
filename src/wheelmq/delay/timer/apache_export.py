"""Prepare the store for Apache RocketMQ at a clean stop, in case it runs next (RocketMQ: TimerMessageStore).

Apache has no done bits. It indexes the timer queue from timercheck's offset on, and delivers every unit of the slots
not marked as delivered. So a stop indexes the other messages, and hides the units of settled ones (settled_units). Our
own mark does not change: the next start of WheelMQ continues where the turns ended.
"""

from __future__ import annotations

import logging
from typing import Final

from wheelmq.delay.timer.live_view import LiveView
from wheelmq.delay.timer.own_turn import apply_index, index_plan, index_rows
from wheelmq.delay.timer.settled_units import hide_settled
from wheelmq.delay.timer.timer import Timer
from wheelmq.delay.timer.view import ReadView, StoreUnreadable

log = logging.getLogger(__name__)

SECONDS_MAX: Final = 10.0
"""Time limit for indexing at a stop. A million messages take about a second."""
HIDE_SECONDS_MAX: Final = 10.0
"""Time limit for hiding units of settled messages. Ten million units take about a second."""


def prepare(timer: Timer, last_read_ms: int) -> None:
    """Index the rest of the timer queue, then hide the units of settled messages in the slots from `last_read_ms` on.

    Timercheck marks all earlier slots as delivered. The whole log must be on disk, and no turn may follow. Logs a
    failure: Apache then delivers some settled messages again.
    """
    view = LiveView.on_loop(timer)
    timer.turns.take_back()
    try:
        _index_rest(timer, view)
        after_ms = last_read_ms - timer.settings.precision_ms
        left = hide_settled(timer, after_ms, timer.store.clock.monotonic() + HIDE_SECONDS_MAX)
        if left:
            log.warning(
                "the broker did not check %d units of the timer log: Apache may deliver cancelled messages", left
            )
    except (StoreUnreadable, OSError) as error:
        log.warning(
            "settled messages are not marked in the timer log: an Apache broker that gets the store may deliver "
            "some again: %s",
            error,
        )


def _index_rest(timer: Timer, view: ReadView) -> None:
    store, settings = timer.store, timer.settings
    stop_s = store.clock.monotonic() + SECONDS_MAX
    while timer.indexed_to < timer.queue.end:
        if store.clock.monotonic() > stop_s or not timer.wheel_has_room(store.clock.now_ms()):
            log.warning("%d messages of the timer queue are not indexed", timer.queue.end - timer.indexed_to)
            return
        durable_end = timer.durable_queue_end(store.log.synced)
        plan = index_plan(timer, timer.indexed_to, durable_end, timer.wheel.floor_slot(store.clock.now_ms()))
        if plan.index_to == plan.index_from:
            return
        rows = index_rows(view, plan, settings.roll_window_slots * settings.precision_ms, settings.precision_ms)
        apply_index(timer, plan, rows)
