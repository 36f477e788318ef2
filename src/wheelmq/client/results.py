"""Results of sends, cancels and transactions (RocketMQ: SendResult, SendStatus, LocalTransactionState)."""

from __future__ import annotations

import base64
import binascii
from typing import Final

import msgspec

from wheelmq.formats.java import java_long
from wheelmq.formats.units import Millis, QueueOffset
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.system.backports import StrEnum

SLOT_MS: Final = 1000
"""Apache RocketMQ rounds due times down to a multiple of this. A recall handle names such a time."""


class SendStatus(StrEnum):
    """The durability of a stored message."""

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
"""Send status by response code. With each of these codes the message is stored."""


class SendResult(msgspec.Struct, frozen=True, kw_only=True):
    status: SendStatus
    message_id: str
    unique_key: str
    queue: QueueName
    """The target queue of the message."""
    queue_offset: QueueOffset
    """The offset in the target queue, or in the queue where the message is parked."""
    due_ms: Millis | None = None
    """The due time. None for a delivery at once, and for a delay level, because only the broker knows its delay.

    The client computes a relative delay from the send time, within the second that the broker returned.
    """
    recall_handle: str | None = None
    transaction_id: str | None = None


class CancelResult(StrEnum):
    """The result of a cancel. If several brokers answer, the first of their results in this order."""

    CANCELLED = "cancelled"
    ALREADY_SETTLED = "already delivered or cancelled"
    ACCEPTED = "accepted"
    """The broker stored the cancel and does not report its effect. Apache RocketMQ always answers this."""
    NOT_FOUND = "not found"


class TransactionState(StrEnum):
    """The state of a transaction, as its producer reports it."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOW"
    """Undecided: the broker asks again later."""


class TransactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """A started transaction: the result of its half message, and its state."""

    sent: SendResult
    state: TransactionState


def due_ms(reckoned_ms: int, handle: str | None) -> Millis:
    """Return the computed due time `reckoned_ms`, moved into the second that the broker's recall handle names.

    The time in the handle is the slot's time plus 1 ms. A slot contains the SLOT_MS after its time.
    """
    words = handle_words(handle) if handle else None
    slot_ms = None if words is None else java_long(words[3])
    if slot_ms is None:
        return Millis(reckoned_ms)
    return Millis(min(max(reckoned_ms, slot_ms), slot_ms + SLOT_MS - 1))


def handle_words(handle: str) -> list[str] | None:
    """Return the words of a recall handle, URL-safe base64 of `v1 topic broker time key`; None for another text."""
    try:
        words = base64.urlsafe_b64decode(handle.encode()).decode().split(" ")
    except (binascii.Error, ValueError):
        return None
    return words if len(words) == 5 and words[0] == "v1" else None
