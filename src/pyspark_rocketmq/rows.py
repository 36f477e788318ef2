"""The columns of the sink, and the messages of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.options import SinkOptions
from wheelmq.client.delays import PAST_MS_MAX
from wheelmq.client.outgoing import OutgoingMessage
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.units import Millis

KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "shardingKey": ("string",),
    "deliverTime": ("timestamp",),
    "delayMs": ("bigint", "int"),
    "delayLevel": ("int", "bigint"),
    "msgId": ("string",),
}
"""The Spark types of each column."""
DELAYS: Final = ("deliverTime", "delayMs", "delayLevel")

PROTOCOL_PROPERTIES: Final = frozenset(
    (
        props.KEYS, props.TAGS, props.UNIQ_KEY, props.WAIT, props.DELAY, props.MSG_REGION, props.TRACE_ON,
        props.CLUSTER, props.TRAN_MSG, props.PRODUCER_GROUP, props.TRANSACTION_ID, props.INNER_NUM, props.POP_CK,
        props.REAL_TOPIC, props.REAL_QID, props.RETRY_TOPIC, props.ORIGIN_MESSAGE_ID, props.TIMER_DELAY_SEC,
        props.TIMER_DELAY_MS, props.TIMER_DELIVER_MS, props.TIMER_OUT_MS, props.TIMER_ENQUEUE_MS,
        props.TIMER_DEQUEUE_MS, props.TIMER_ROLL_TIMES, props.TIMER_DEL_UNIQKEY, props.TIMER_DELAY_LEVEL,
        props.DELAY_IN_SECONDS, props.WMQ_DUE, props.WMQ_ORIGIN, "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME",
        "RECONSUME_TIME", "MAX_RECONSUME_TIMES",
    )
)  # fmt: skip
"""Properties that clients and brokers write. They are left out of the column `properties`, so that a row that was read
from RocketMQ can be written."""


KEY_CHARS: Final = 32
"""Characters of a unique key."""
_DIGITS: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)


class Row(NamedTuple):
    """A message with its topic."""

    topic: str
    message: OutgoingMessage

    @property
    def is_delayed(self) -> bool:
        message = self.message
        return not (message.deliver_at_ms is None and message.delay_ms is None and message.delay_level is None)


class RowForm(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a DataFrame that is written, and the topic of rows without one."""

    columns: tuple[str, ...]
    topic: str | None
    body_bytes_max: int
    delivers_past: bool

    @classmethod
    def of(cls, schema: Any, options: SinkOptions) -> Self:
        """Return the form for a schema of Spark. Raises OptionError for a schema that does not fit."""
        for field in schema.fields:
            kinds, found = KINDS.get(field.name), field.dataType.simpleString()
            if kinds is None:
                raise OptionError(
                    f"column {field.name} has no use in a message: drop it, or put it into body or properties. "
                    f"The columns are {', '.join(KINDS)}"
                )
            if found not in kinds:
                raise OptionError(f"column {field.name} is {found}: cast it to {' or '.join(kinds)}")
        columns = tuple(field.name for field in schema.fields)
        if "body" not in columns:
            raise OptionError("column body is missing: select the content of the messages as body")
        if "topic" not in columns and options.topic is None:
            raise OptionError("no topic is given: set option topic, or select a column topic")
        return cls(
            columns=columns,
            topic=options.topic,
            body_bytes_max=options.body_bytes_max,
            delivers_past=options.delivers_past,
        )

    def rows(self, batch: pa.RecordBatch, keys: UniqueKeys, now_ms: Millis) -> Iterator[Row]:
        """Yield the messages of a batch. Raises OptionError for a row that cannot be sent."""
        values = {name: _values(name, batch.column(i)) for i, name in enumerate(self.columns)}
        for i in range(batch.num_rows):
            row = {name: column[i] for name, column in values.items()}
            try:
                yield self._row(row, keys.next(), now_ms)
            except OptionError as error:
                raise OptionError(f"row {keys.count - 1} of the partition: {error}") from None

    def _row(self, row: dict[str, Any], key: str, now_ms: Millis) -> Row:
        body = row["body"]
        if body is None:
            raise OptionError("column body is null: filter such rows out, or replace null with coalesce(body, ...)")
        if len(body) > self.body_bytes_max:
            raise OptionError(
                f"column body has {len(body)} bytes, and option maxBodyBytes is {self.body_bytes_max}: shorten it, or "
                "raise the option and the broker's maxMessageSize"
            )
        topic = row.get("topic") or self.topic
        if topic is None:
            raise OptionError("column topic is null: filter such rows out, or set option topic for them")
        problem = names.topic_problem(topic)
        if problem is not None:
            raise OptionError(f"column topic is {topic!r}: {problem}")
        properties = {
            name: value
            for name, value in row.get("properties") or ()
            if name not in PROTOCOL_PROPERTIES and value is not None
        }
        properties[props.UNIQ_KEY] = row.get("msgId") or key
        keys = row.get("keys") or ()
        if not isinstance(keys, str) and None in keys:
            raise OptionError("column keys has a null in its array: remove it with array_compact(keys)")
        sharding_key = row.get("shardingKey")
        if sharding_key:
            properties[props.SHARDING_KEY] = sharding_key
        message = OutgoingMessage(
            body=body,
            keys=keys,
            tags=row.get("tags"),
            properties=properties,
            order_key=sharding_key or None,
            **self._delay(row, now_ms),
        )
        return Row(topic, message)

    def _delay(self, row: dict[str, Any], now_ms: Millis) -> dict[str, Any]:
        """Return the option of the message for its delay; none for a delivery at once."""
        given = {name: row[name] for name in DELAYS if row.get(name) is not None}
        if len(given) > 1:
            raise OptionError(f"columns {' and '.join(given)} exclude each other: set one of them to null")
        if "deliverTime" in given:
            past_ms = now_ms - given["deliverTime"]
            if past_ms <= 0 or (past_ms <= PAST_MS_MAX and not self.delivers_past):
                return {"deliver_at_ms": given["deliverTime"]}
            if self.delivers_past:
                return {}
            raise OptionError(
                f"column deliverTime is {past_ms / 1000:.10g} s in the past: filter such rows out, or set option "
                "pastDeliverTime to deliver, to send them at once"
            )
        if "delayMs" in given:
            if given["delayMs"] < 0:
                raise OptionError(f"column delayMs is {given['delayMs']}: a delay is not negative; 0 delivers at once")
            return {"delay_ms": given["delayMs"]} if given["delayMs"] else {}
        level = given.get("delayLevel", 0)
        if not 0 <= level <= 18:
            raise OptionError(f"column delayLevel is {level}: the levels are 1 to 18, and 0 delivers at once")
        return {"delay_level": level} if level else {}


class UniqueKeys:
    """The unique keys of the rows of a partition. A repeated attempt gives the same key to the same row.

    A key has the form of Apache's: 16 bytes as hex digits. Their bytes 10 to 13 hold the milliseconds of the month in
    Apache's keys, from which its tools search. Here they are 0, the start of the month.
    """

    def __init__(self, job: str, partition: int) -> None:
        self._prefix = hashlib.blake2b(f"{job}/{partition}".encode(), digest_size=8).hexdigest().upper()
        self.count = 0

    def next(self) -> str:
        row = self.count
        self.count += 1
        return f"{self._prefix}{row >> 16 & 0xFFFF:04X}00000000{row & 0xFFFF:04X}"

    def take(self, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the next `count` keys, as bytes: a row of a matrix each."""
        rows = np.arange(self.count, self.count + count)
        self.count += count
        found = np.full((count, KEY_CHARS), ord("0"), np.uint8)
        found[:, :16] = np.frombuffer(self._prefix.encode(), np.uint8)
        for place, shift in ((16, 28), (17, 24), (18, 20), (19, 16), (28, 12), (29, 8), (30, 4), (31, 0)):
            found[:, place] = _DIGITS[rows >> shift & 15]
        return found


def _values(name: str, column: pa.Array) -> list[Any]:
    """Return the values of a column in Python. Times are milliseconds since 1970, rounded up."""
    if name == "deliverTime":
        us = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        column = pc.divide(pc.add(us, 999), 1000)
    elif name == "body" and not pa.types.is_binary(column.type):
        column = column.cast(pa.binary())
    values: list[Any] = column.to_pylist()
    return values
