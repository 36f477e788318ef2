"""JSON bodies, standard or with Java's bare number keys. The first line names the body.

Rules: bytes that are no such body raise BodyError. A body that is written and read again is the same.
"""

from __future__ import annotations

from wheelmq.formats.wire import bodies, portions
from wheelmq.formats.wire.bodies import Body, BodyError, LockBatch, QueueName

SHAPES: dict[bytes, type[object]] = {
    **{kind.__name__.encode(): kind for kind in Body.__subclasses__()},
    b"QueueName": QueueName,
}
TOKENS = (
    *SHAPES, b"\n", b"{", b"}", b"[", b"]", b'"', b":", b",", b"{0:", b"null", b"true", b'"1"', b"1e400",
    b"99999999999999999999",
    b"\\ud800", b"\xff", b"[" * 300, b'"mqSet":[', b'"brokerAddrs":{0:"a"}', b'"subscriptionDataSet":[',
    b'"clientID":"c"',
)  # fmt: skip
assert LockBatch.__name__.encode() in SHAPES


def check(data: bytes) -> None:
    """Read a body and check the rules."""
    name, _, raw = data.partition(b"\n")
    if name == b"Ranges":
        _check_ranges(raw)
    elif name in SHAPES:
        try:
            found = bodies.read(raw, SHAPES[name])  # type: ignore[type-var]
        except BodyError:
            return
        assert bodies.read(bodies.write(found), SHAPES[name]) == found  # type: ignore[type-var]


def _check_ranges(raw: bytes) -> None:
    try:
        found = portions.read_ranges(raw)
    except portions.PortionError:
        return
    assert found.tobytes() == raw
