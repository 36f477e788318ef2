"""The columns of the source, declared once: their names, Spark types and Arrow types."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from pyspark_rocketmq.errors import OptionError

_TIME: Final = pa.timestamp("us", tz="UTC")
_PROPERTIES: Final = pa.map_(pa.string(), pa.string())

COLUMNS: Final = {
    "body": ("binary", pa.binary()),
    "topic": ("string", pa.string()),
    "tags": ("string", pa.string()),
    "keys": ("string", pa.string()),
    "properties": ("map<string,string>", _PROPERTIES),
    "msgId": ("string", pa.string()),
    "broker": ("string", pa.string()),
    "queueId": ("int", pa.int32()),
    "queueOffset": ("bigint", pa.int64()),
    "bornTimestamp": ("timestamp", _TIME),
    "storeTimestamp": ("timestamp", _TIME),
    "deliverTime": ("timestamp", _TIME),
    "reconsumeTimes": ("int", pa.int32()),
}
SPARK_SCHEMA: Final = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())


def chosen_columns(schema: Any) -> tuple[str, ...]:
    """Return the names of the columns in a schema of Spark. A user may choose fewer columns than there are.

    Raises OptionError for a column or a type that the source does not have.
    """
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise OptionError(f"the schema has column {field.name}: the columns are {', '.join(COLUMNS)}")
        kind = COLUMNS[field.name][0]
        if field.dataType.simpleString() != kind:
            raise OptionError(
                f"the schema has {field.name} as {field.dataType.simpleString()}: the source has {kind}; "
                "convert it with cast after the read"
            )
        if not field.nullable:
            raise OptionError(f"the schema has {field.name} as NOT NULL: make it nullable")
    return tuple(field.name for field in schema.fields)


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """Return the Arrow schema of these columns, which is exactly that of Spark."""
    return pa.schema([pa.field(name, COLUMNS[name][1]) for name in columns])
