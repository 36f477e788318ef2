"""GET_TIMER_CHECK_POINT, GET_TIMER_METRICS, GET_ALL_DELAY_OFFSET; our own codes list and count pending messages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from wheelmq.broker.answers import Answer, Deferred, PeerError, reply
from wheelmq.broker.context import Context
from wheelmq.broker.engine import Engine
from wheelmq.broker.handler_table import HandlerTable
from wheelmq.broker.request import Request
from wheelmq.delay import listing
from wheelmq.delay.api import Generations, Wanted
from wheelmq.delay.delivery_state import KeyQuery, delivery_states, delivery_states_of
from wheelmq.delay.levels.offsets import DelayOffsetsBody
from wheelmq.delay.release import Releaser
from wheelmq.delay.timer.metrics import TimerMetricsTable
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk.message import Record
from wheelmq.formats.units import NEVER_MS, Millis
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import CountTimersHeader, FindTimersHeader, ListTimersHeader
from wheelmq.system.clock import Clock

LISTED_MAX: Final = 500
"""Greatest number of messages in one answer, so that no answer takes long."""
FOUND_MAX: Final = 64
"""Greatest number of records of a topic that are read for one key. The newest ones are read."""

CHECK_POINT: Final[HandlerTable[[Timer, Releaser]]] = HandlerTable()
METRICS: Final[HandlerTable[[TimerMetricsTable]]] = HandlerTable()
LISTINGS: Final[HandlerTable[[Context, Engine]]] = HandlerTable()


@CHECK_POINT.serves(RequestCode.GET_TIMER_CHECK_POINT)
def get_check_point(request: Request, timer: Timer, releaser: Releaser) -> Answer:
    """Return the present values of Apache's timercheck."""
    return reply(body=timer.timercheck(releaser.earliest_in_hand_ms()).pack())


@METRICS.serves(RequestCode.GET_TIMER_METRICS)
def get_metrics(request: Request, timer_metrics: TimerMetricsTable) -> Answer:
    """Return the number of pending messages by real topic (RocketMQ: TimerMetrics)."""
    return reply(body=bodies.write(timer_metrics.table()))


@LISTINGS.serves(RequestCode.GET_ALL_DELAY_OFFSET)
def get_delay_offsets(request: Request, context: Context, engine: Engine) -> Answer:
    """Return for each level the present queue offset of its first pending message (RocketMQ: delayOffset.json)."""
    return reply(body=bodies.write(DelayOffsetsBody(offset_table=engine.timer.pending.levels.offsets(), wheelmq=True)))


@LISTINGS.serves(RequestCode.WMQ_LIST_TIMERS)
def list_timers(request: Request, context: Context, engine: Engine) -> Answer:
    """List pending messages from a place on, one JSON object per line. `nextPlace` is the next place, and `isLast`
    marks the end. With `soonest`, list the messages of some places that are due first; `found` counts all messages of
    these places."""
    header = request.header(ListTimersHeader)
    if header.count <= 0:
        raise PeerError(ResponseCode.INVALID_PARAMETER, f"count is {header.count}: it must be 1 or more")
    wanted = Wanted(header.topic, Millis(header.from_ms), Millis(header.to_ms))
    if header.soonest and header.count <= LISTED_MAX:
        return _soonest(header, context.clock, engine.generations, wanted)
    seen = listing.read_page(engine.generations, context.clock, header.place, wanted)
    next_place = seen.next_place
    body: list[bytes] = []
    for place, pending in listing.lines(engine.generations, seen, wanted):
        if len(body) == min(header.count, LISTED_MAX):
            next_place = place
            break
        body.append(msgspec.json.encode(pending))
    answer = reply(body=b"\n".join(body), nextPlace=next_place, isLast=next_place == listing.END)
    if header.soonest:
        answer.ext["found"] = str(len(body))
    return answer


def _soonest(header: ListTimersHeader, clock: Clock, generations: Generations, wanted: Wanted) -> Command:
    """Answer with the earliest messages of some places, by due time.

    Sorts all of them if a topic is given, because only the records have the name of the topic.
    """
    seen = listing.read_page(generations, clock, header.place, wanted, listing.PLACES_MAX)
    count = header.count if wanted.topic is None else None
    chosen = listing.soonest(seen, header.listed_before_ms, count)
    lines = itertools.islice(listing.lines(generations, chosen, wanted), header.count)
    return reply(
        body=b"\n".join(msgspec.json.encode(pending) for _, pending in lines),
        nextPlace=seen.next_place,
        isLast=seen.next_place == listing.END,
        found=len(seen.origins),
    )


@LISTINGS.serves(RequestCode.WMQ_COUNT_TIMERS)
def count_timers(request: Request, context: Context, engine: Engine) -> Answer:
    """Count pending messages from a place on by time step. The JSON answer maps the start of each step to its count.

    `nextPlace` is the next place, and `isLast` marks the end. Add up the counts of all answers.
    """
    header = request.header(CountTimersHeader)
    if header.step_ms <= 0:
        raise PeerError(ResponseCode.INVALID_PARAMETER, f"stepMs is {header.step_ms}: it must be 1 or more")
    wanted = Wanted(header.topic, Millis(header.from_ms), Millis(header.to_ms))
    seen = listing.read_page(engine.generations, context.clock, header.place, wanted, listing.PLACES_MAX)
    counts = listing.count_by(seen, header.step_ms)
    return reply(
        body=msgspec.json.encode(counts),
        nextPlace=seen.next_place,
        isLast=seen.next_place == listing.END,
    )


@LISTINGS.serves(RequestCode.WMQ_FIND_TIMERS)
def find_timers(request: Request, context: Context, engine: Engine) -> Answer:
    """Return the outcomes of the delayed messages for a topic with a key, one JSON object per line. A place is an
    origin. From place 0 on come timers and levels, the oldest first. Then come messages in blocks, which are searched
    off the loop.

    The search covers the newest records with the key; `truncated` says that there may be more. `nextPlace` is the next
    place, and `isLast` says that all blocks were searched.
    """
    header = request.header(FindTimersHeader)
    index, log = engine.index, engine.store.log
    if index is None:
        raise PeerError(ResponseCode.SYSTEM_ERROR, "messageIndexEnable is off, so the broker cannot search by key")
    if not header.key:
        raise PeerError(ResponseCode.INVALID_PARAMETER, "key is empty")
    is_truncated = False

    def find(topic: str, key: str) -> Iterator[Record]:
        nonlocal is_truncated
        found = index.find(topic, key, Millis(0), NEVER_MS, FOUND_MAX)
        is_truncated |= key == header.key and len(found.positions) == FOUND_MAX
        return (record for position in found.positions if (record := log.record_at(position)) is not None)

    asked = KeyQuery(header.topic, header.key)

    def searched(result: Any) -> Command:
        if isinstance(result, BaseException):
            raise result
        found = delivery_states(engine.generations, asked, find) if header.place <= 0 else []
        found += delivery_states_of(engine.generations, asked, find, result.origins)
        return reply(
            body=b"\n".join(map(msgspec.json.encode, found)),
            truncated=is_truncated,
            nextPlace=result.next_place,
            isLast=result.next_place == listing.END,
        )

    def late() -> Command:
        return reply(ResponseCode.SYSTEM_BUSY, "the search of the blocks did not end in time: try again")

    answer = Deferred()
    if not engine.searches.begin(header.key, header.place, answer.callback(searched)):
        raise PeerError(ResponseCode.SYSTEM_BUSY, "the broker is searching blocks for other requests: try again")
    return context.holds.with_deadline(request, answer, context.settings.requests.response_timeout_ms, late)
