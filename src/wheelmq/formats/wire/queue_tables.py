"""Maps by queue in Java's form. A key is an object without quotes around it, so the text is not JSON.

```
{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:7}}
```

Clients of 5.4.0 accept no other form (docs: codes 202, 208, 220 to 223, 307, 317). The reader accepts quoted keys too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import BodyError, QueueName

V = TypeVar("V")


def by_queue(table: Mapping[str, V]) -> dict[QueueName, V]:
    """Return a map by queue from a map that `bodies.read` returned with keys as texts. Raises BodyError."""
    try:
        return {msgspec.json.decode(key, type=QueueName, strict=False): value for key, value in table.items()}
    except msgspec.DecodeError as error:
        raise BodyError(f"a key is not a queue: {error}") from None


def write(**fields: Any) -> bytes:
    """Return a body of `fields`: maps by queue in Java's form, all others as JSON."""
    parts = (b"%b:%b" % (bodies.write(name), _field(value)) for name, value in fields.items() if value is not None)
    return b"{%b}" % b",".join(parts)


def table(by_queue: Mapping[QueueName, Any]) -> msgspec.Raw:
    """Return a map by queue in Java's form, for use as a value in msgspec's encoders."""
    rows = (b"%b:%b" % (bodies.write(queue), bodies.write(value)) for queue, value in by_queue.items())
    return msgspec.Raw(b"{%b}" % b",".join(rows))


def _field(value: Any) -> bytes:
    if not isinstance(value, Mapping) or not any(isinstance(key, QueueName) for key in value):
        return bodies.write(value)
    return bytes(table(value))
