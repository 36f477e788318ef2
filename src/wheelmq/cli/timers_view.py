"""The output of `wheelmq timers`: tables for people, JSON for programs."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from wheelmq.cli.tables import counted, print_array, print_structs, print_table, when_text
from wheelmq.cli.times import remaining_text

if TYPE_CHECKING:
    from wheelmq.delay.delivery_state import DeliveryState
    from wheelmq.delay.pending_message import PendingMessage


END_FIELDS: Final = ("end", "ended_ms", "end_position")
"""Fields of a row with the end of its message: null for a pending one."""
_PENDING_TAIL: Final = b"".join(b',"%b":null' % name.encode() for name in END_FIELDS) + b"}"


class MinuteCount(msgspec.Struct):
    """A row of `wheelmq timer-counts`: the messages that are due in the minute that begins at `minute_ms`."""

    minute_ms: int
    count: int


def pending_row(line: bytes) -> bytes:
    """Return the JSON row of a pending message, which has no end."""
    return line[:-1] + _PENDING_TAIL


def state_row(line: bytes) -> bytes:
    """Return the JSON row of a message that a key found: the fields of a pending one, and its end."""
    from wheelmq.delay.delivery_state import DeliveryState

    one = msgspec.json.decode(line, type=DeliveryState)
    return msgspec.json.encode(msgspec.to_builtins(one.message) | {name: getattr(one, name) for name in END_FIELDS})


def show(lines: Iterator[bytes], limit: int, *, as_json: bool) -> bool:
    """Show the first `limit` messages by due time, or as JSON all messages by queue. Returns False without any."""
    if as_json:
        return print_array(map(pending_row, lines)) > 0
    from wheelmq.delay.pending_message import PendingMessage
    from wheelmq.system.clock import SystemClock

    count = 0

    def counted() -> Iterator[PendingMessage]:
        nonlocal count
        for line in lines:
            count += 1
            yield msgspec.json.decode(line, type=PendingMessage)

    first = heapq.nsmallest(limit, counted(), key=lambda pending: (pending.due_ms, pending.queue_offset))
    if first:
        _print_pending(first, count, SystemClock().now_ms())
    return count > 0


def show_first(first: list[PendingMessage], count: int) -> bool:
    """Show the messages that are due first, of `count` in all. Returns False if there are none."""
    from wheelmq.system.clock import SystemClock

    if first:
        _print_pending(first, count, SystemClock().now_ms())
    return bool(first)


def show_counts(counts: Counter[int], limit: int, *, as_json: bool) -> bool:
    """Show the number of messages due in each minute, the earliest first. Returns False if there are none."""
    if as_json:
        return print_structs(MinuteCount(minute_ms, count) for minute_ms, count in sorted(counts.items())) > 0
    if counts:
        more = f", the first {limit}" if len(counts) > limit else ""
        rows = [(when_text(minute_ms)[:16], str(count)) for minute_ms, count in sorted(counts.items())[:limit]]
        title = f"{counts.total()} pending, in {counted(len(counts), 'minute')}{more}"
        print_table(title, ("minute (local time)", "count"), rows)
    return bool(counts)


def show_states(lines: Iterable[bytes], *, as_json: bool) -> bool:
    """Show the state of each message that has the key. Returns False if there are none."""
    if as_json:
        return print_array(map(state_row, lines)) > 0
    from wheelmq.delay.delivery_state import DeliveryState

    rows = [_state_cells(msgspec.json.decode(line, type=DeliveryState)) for line in lines]
    if rows:
        columns = ("due (local time)", "state", "since", "unique key", "keys", "at log position")
        print_table(f"{len(rows)} found", columns, rows, may_go=("at log position", "keys", "since"))
    return bool(rows)


def _state_cells(one: DeliveryState) -> tuple[str, ...]:
    message = one.message
    state = message.state.value if one.end is None else one.end.value
    position = message.log_position if one.end_position is None else one.end_position
    since = when_text(one.ended_ms)
    return when_text(message.due_ms), state, since, message.unique_key or "", message.keys or "", str(position)


def _print_pending(first: list[PendingMessage], count: int, now_ms: int) -> None:
    title = f"{count} pending" + (f", the first {len(first)}" if count > len(first) else "")
    rows = []
    for one in first:
        left = remaining_text(one.due_ms - now_ms) if one.due_ms > now_ms else "due"
        rows.append((when_text(one.due_ms), left, one.topic, one.keys or "", one.unique_key or "", one.state.value))
    columns = ("due (local time)", "in", "topic", "keys", "unique key", "state")
    print_table(title, columns, rows, may_go=("keys", "in", "topic"))
