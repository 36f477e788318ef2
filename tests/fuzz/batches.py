"""The bodies of batches of messages.

Rules: bytes that are no batch raise ValueError. The messages lie where their lengths say. A batch that our producer
writes of the messages reads the same.
"""

from __future__ import annotations

from wheelmq.broker.handlers.send import split_batch
from wheelmq.client.outgoing import encode_batch

TOKENS = (
    b"\0\0\0\x01", b"\0\0\0\0", b"\0\0\0\x17", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0",
    b"\x80\0",
    b"\0\x04k\x01v\x02", b"\x01", b"\x02", b"DELAY\x013\x02",
)  # fmt: skip


def check(data: bytes) -> None:
    """Split a batch and check the rules."""
    try:
        found = split_batch(data)
    except ValueError as error:
        assert str(error).startswith("batch: ")
        return
    assert sum(22 + len(body) for _, body, _ in found) <= len(data)
    again = split_batch(encode_batch([(body, properties) for _, body, properties in found]))
    assert [(body, properties) for _, body, properties in again] == [
        (body, properties) for _, body, properties in found
    ]
