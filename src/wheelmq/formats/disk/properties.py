"""Message properties: `name \\x01 value \\x02`, repeated (RocketMQ: MessageDecoder).

The reader accepts the same bytes as Apache's: it keeps a pair if neither the name nor the value is empty, and drops
anything else between two \\x02. The last value of a name wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NAME_END: Final = "\x01"
PAIR_END: Final = "\x02"

PROPERTIES_BYTES_MAX: Final = 32_767
"""A signed 16-bit field holds the length."""

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
UNIQ_KEY: Final = "UNIQ_KEY"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
CLUSTER: Final = "CLUSTER"
TRAN_MSG: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
CHECK_IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
INNER_NUM: Final = "INNER_NUM"
POP_CK: Final = "POP_CK"
SHARDING_KEY: Final = "__SHARDINGKEY"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"

TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"
"""The property DELAY of a parked message. As DELAY, it would cause Apache RocketMQ to delay a released message."""

DELAY_IN_SECONDS: Final = "delayInSeconds"
"""Ours, and any client can set it: deliver this number of seconds after the broker's receipt, through a block."""

WMQ_DUE: Final = "__WMQ_DUE"
"""Ours, on a parked record: the exact due time, 13 decimal digits of milliseconds."""
WMQ_ORIGIN: Final = "__WMQ_ORIGIN"
"""Ours, the last property of a record that settles a parked one: the origin of the parked one, 16 hex digits."""

TIMER_REQUESTS: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""The properties that request a timer. The first one present counts (RocketMQ: HookUtils)."""

OWN: Final = (WMQ_DUE, WMQ_ORIGIN)
"""Properties that only the broker writes. It removes them from a client's message."""


def parse(text: str) -> dict[str, str]:
    """Return the properties in `text`, with the rules of Apache's reader. Never raises."""
    found: dict[str, str] = {}
    for pair in text.split(PAIR_END):
        name, _, value = pair.partition(NAME_END)
        if name and value:
            found.pop(name, None)  # the last value wins and moves to the end
            found[name] = value
    return found


def has_separator(value: str) -> bool:
    """Return whether a value would be read as several properties."""
    return NAME_END in value or PAIR_END in value


class StoredProperties:
    """The properties of a record as text. Each `get` searches the text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = PAIR_END + text

    def get(self, name: str) -> str | None:
        """Return the value that `parse` gives for `name`. `name` is not empty and holds no separator."""
        head = f"{PAIR_END}{name}{NAME_END}"
        end = len(self._text)
        while (at := self._text.rfind(head, 0, end)) >= 0:
            start = at + len(head)
            stop = self._text.find(PAIR_END, start)
            value = self._text[start:stop] if stop >= 0 else self._text[start:]
            if value:
                return value
            end = at + 1
        return None


def without_origin(properties: Mapping[str, str]) -> dict[str, str]:
    """Return a stored message's `properties` for another record, whose append adds an origin of its own."""
    return {name: value for name, value in properties.items() if name != WMQ_ORIGIN}


def fitting(properties: Mapping[str, str], bytes_max: int = PROPERTIES_BYTES_MAX) -> dict[str, str]:
    kept = dict(properties)
    while kept and len(encode(kept)) > bytes_max:
        kept.popitem()
    return kept


def encode(properties: Mapping[str, str]) -> bytes:
    return "".join(f"{name}{NAME_END}{value}{PAIR_END}" for name, value in properties.items()).encode(
        "utf-8", "replace"
    )
