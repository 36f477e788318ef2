"""What became of a send, a cancel, a transaction (RocketMQ: SendResult, SendStatus, LocalTransactionState)."""

from __future__ import annotations

import base64
import binascii
from enum import StrEnum
from typing import Final

import msgspec

from wheelmq.formats.java import java_long
from wheelmq.formats.units import Millis, QueueOffset
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.formats.wire.codes import ResponseCode

SLOT_MS: Final = 1000
"""What Apache RocketMQ floors a due time to, and so what a recall handle tells."""


class SendStatus(StrEnum):
    """How safe a stored message is."""

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


STATUS: Final[dict[int, SendStatus]] = {
    ResponseCode.SUCCESS: SendStatus.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
"""By the code of an answer: the message is stored."""


class SendResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a send."""

    status: SendStatus
    message_id: str
    unique_key: str
    queue: QueueName
    """The queue that it is meant for."""
    queue_offset: QueueOffset
    """Where it is stored: in that queue, or while it waits in the queue of the waiting."""
    due_ms: Millis | None = None
    """When it is due; None when it is delivered at once, or after a level, whose length the broker knows. For a delay
    it is reckoned from the time of sending, kept within the second that the broker named."""
    recall_handle: str | None = None
    transaction_id: str | None = None


class CancelResult(StrEnum):
    """What came of a cancel; of what several brokers say, the first in this order."""

    CANCELLED = "cancelled"
    ALREADY_SETTLED = "already delivered or cancelled"
    ACCEPTED = "accepted"
    """The broker took it and does not tell what came of it: so does Apache RocketMQ."""
    NOT_FOUND = "not found"


class TransactionState(StrEnum):
    """What a producer says of its transaction."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOW"
    """Not decided yet: the broker asks again later."""


class TransactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that was begun: its half message, and what was said of it."""

    sent: SendResult
    state: TransactionState


def due_ms(reckoned_ms: int, handle: str | None) -> Millis:
    """A due time reckoned here, brought into the second that the broker's recall handle names.

    The handle says 1 ms more than the time of the slot, and the slot holds the SLOT_MS behind its time.
    """
    words = handle_words(handle) if handle else None
    slot_ms = None if words is None else java_long(words[3])
    if slot_ms is None:
        return Millis(reckoned_ms)
    return Millis(min(max(reckoned_ms, slot_ms), slot_ms + SLOT_MS - 1))


def handle_words(handle: str) -> list[str] | None:
    """What is in a recall handle, URL-safe base64 of `v1 topic broker time key`; None when it is another one."""
    try:
        words = base64.urlsafe_b64decode(handle.encode()).decode().split(" ")
    except (binascii.Error, ValueError):
        return None
    return words if len(words) == 5 and words[0] == "v1" else None
