"""Message properties: `name \\x01 value \\x02`, repeated (RocketMQ: MessageDecoder).

The writer ends each pair with \\x02. The reader takes what Apache's takes: a pair counts when its name and its
value are not empty; anything else between two \\x02 is dropped; of one name the last value wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NAME_END: Final = "\x01"
PAIR_END: Final = "\x02"

PROPERTIES_BYTES_MAX: Final = 32_767
"""The length stands in a signed 16-bit field."""

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
"""DELAY, while its message is parked: as DELAY it would have Apache RocketMQ delay what leaves its timer once more."""

DELAY_IN_SECONDS: Final = "delayInSeconds"
"""Ours, and any client can set it: deliver so many seconds from the broker's receipt on, by way of a block."""

WMQ_DUE: Final = "__WMQ_DUE"
"""Ours, on a parked record: the exact due time, 13 decimal digits of milliseconds."""
WMQ_ORIGIN: Final = "__WMQ_ORIGIN"
"""Ours, the last property of a record that settles a parked one: that one's origin, 16 hex digits."""

TIMER_REQUESTS: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""The properties that ask for a timer; the first that is present counts (RocketMQ: HookUtils)."""

OWN: Final = (WMQ_DUE, WMQ_ORIGIN)
"""Properties that only the broker writes; taken off whatever a client sends."""


def parse(text: str) -> dict[str, str]:
    """The properties in `text`, as Apache's reader takes them. Never raises."""
    found: dict[str, str] = {}
    for pair in text.split(PAIR_END):
        name, _, value = pair.partition(NAME_END)
        if name and value:
            found.pop(name, None)  # the last one wins and stands last
            found[name] = value
    return found


class StoredProperties:
    """Properties as they stand in a record: each is looked for when it is asked for."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = PAIR_END + text

    def get(self, name: str) -> str | None:
        """What `parse` would give for `name`, which is neither empty nor holds a separator."""
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
    """`properties` of a stored message for another record, which gets its origin, if it has one, as it is appended."""
    return {name: value for name, value in properties.items() if name != WMQ_ORIGIN}


def fitting(properties: Mapping[str, str], bytes_max: int = PROPERTIES_BYTES_MAX) -> dict[str, str]:
    """`properties` without those at the end for which `bytes_max` encoded bytes leave no room."""
    kept = dict(properties)
    while kept and len(encode(kept)) > bytes_max:
        kept.popitem()
    return kept


def encode(properties: Mapping[str, str]) -> bytes:
    """The stored form of `properties`, in their order."""
    return "".join(f"{name}{NAME_END}{value}{PAIR_END}" for name, value in properties.items()).encode(
        "utf-8", "replace"
    )
