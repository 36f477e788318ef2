"""Headers of requests that send, return or recall a message, or end a transaction."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from wheelmq.formats.wire.headers.base import Header, Int32, Int64, read, texts

VERSION_WITH_MAX_TIMES: Final = 121
"""V3_4_9. The maxReconsumeTimes of an older client is ignored."""
BATCH_HEAD: Final = struct.Struct(">iiiii")
"""The start of a message in a batch: size, magic, body crc, flag, body size. Size, magic and crc are not checked."""


class SendHeader(Header, kw_only=True):
    """SEND_MESSAGE. SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE name the same fields by letters.

    The group is optional: Apache declares it as required, but its broker accepts a request without it.
    """

    producer_group: str = ""
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    batch: bool = False
    max_reconsume_times: Int32 | None = None


_SEND_LETTERS: Final = dict(
    zip(
        "abcdefghijklm",
        (
            "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp",
            "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch",
        ),
        strict=True,
    )
)  # fmt: skip


def read_send_v2(ext: dict[str, str]) -> SendHeader:
    return read({_SEND_LETTERS[name]: value for name, value in ext.items() if name in _SEND_LETTERS}, SendHeader)


def write_send_v2(header: SendHeader) -> dict[str, str]:
    fields = msgspec.to_builtins(header)
    return texts(**{letter: fields[name] for letter, name in _SEND_LETTERS.items()})


class SendBackHeader(Header):
    """CONSUMER_SEND_MSG_BACK. `offset` is a log position."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class RecallHeader(Header):
    """RECALL_MESSAGE."""

    topic: str
    recall_handle: str = ""
    producer_group: str = ""


class EndTransactionHeader(Header):
    """END_TRANSACTION, for the half message at a log position and a queue offset.

    `commit_or_rollback` is 8 to commit, 12 to roll back, 0 if the outcome is not known yet.
    """

    position: Int64 = msgspec.field(name="commitLogOffset")
    queue_offset: Int64 = msgspec.field(name="tranStateTableOffset")
    commit_or_rollback: Int32
    producer_group: str | None = None
    from_transaction_check: bool = False
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    bname: str | None = None


class ResumeCheckHeader(Header):
    """RESUME_CHECK_HALF_MESSAGE."""

    msg_id: str
