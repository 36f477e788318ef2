"""The life of a golden store: the messages sent to Apache's broker before it ends, and their expected states."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import Final

import msgspec

from wheelmq.formats.disk import properties as props
from wheelmq.formats.names import retry_topic
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.sync_connection import SyncConnection

TOPIC: Final = "T"
GROUP: Final = "G"
LONG_GROUP: Final = "g" * 130
"""The name of its retry topic has more than 127 bytes, so its records have magic V2."""
ROLL_WINDOW_S: Final = 10
DEADLINE_S: Final = 60.0
HOUR_MS: Final = 3_600_000
SYS_ZLIB: Final = 0x301
SYS_OLD_ZLIB: Final = 0x1
SYS_LZ4: Final = 0x101
SYS_ZSTD: Final = 0x201
SYS_PREPARED: Final = 0x4
TEXT: Final = b"wheel " * 40
CONSUMED: Final = 2


class Sent(msgspec.Struct):
    """A sent message. `topic` and `queue_id` are the place where it is expected."""

    body: str
    """Hex."""
    topic: str
    queue_id: int
    keys: list[str]
    sys_flag: int
    due_ms: int | None = None
    """The due time, if the message is pending when the broker ends."""
    is_gone: bool = False
    """Whether it was cancelled or never committed, and must not arrive."""


class Life(msgspec.Struct):
    """The messages of a store, and its end."""

    end: str
    ended_ms: int
    sent: list[Sent]
    offsets: dict[str, dict[int, int]]
    """Offsets of groups, as in consumerOffset.json."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Sender:
    """Sends over one connection and records the messages."""

    def __init__(self, link: SyncConnection, first: int) -> None:
        self._link = link
        self._number = first
        self.sent: list[Sent] = []

    def send(
        self, body: bytes, *, due_ms: int | None = None, is_gone: bool = False, sys_flag: int = 0, **properties: str
    ) -> dict[str, str]:
        """Send one message to the topic's only queue. Returns the answer's header."""
        self._number += 1
        unique = f"{self._number:032X}"
        key = f"k{self._number}"
        pairs = {props.UNIQ_KEY: unique, props.KEYS: f"{key} all", **properties}
        stored_flag = sys_flag & ~SYS_PREPARED
        self.sent.append(Sent(body.hex(), TOPIC, 0, [key, unique], stored_flag, due_ms, is_gone))
        return self._ask(body, pairs, sys_flag)

    def cancel(self, delivered_ms: int) -> None:
        key = f"{TOPIC}+{self.sent[-1].keys[1]}"
        deliver = {props.TIMER_DELIVER_MS: str(delivered_ms)}
        self._ask(b"cancel", {props.UNIQ_KEY: "cancel", props.TIMER_DEL_UNIQKEY: key, **deliver}, 0)

    def _ask(self, body: bytes, properties: dict[str, str], sys_flag: int, *, batch: bool = False) -> dict[str, str]:
        fields: dict[str, object] = {
            "a": GROUP,
            "b": TOPIC,
            "c": "TBW102",
            "d": 1,
            "e": 0,
            "f": sys_flag,
            "g": now_ms(),
            "h": 7,
            "i": props.encode(properties).decode(),
            "j": 0,
            "k": False,
            "l": 16,
            "m": batch,
        }
        code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
        return self._link.ask(Command(code=code, ext=headers.texts(**fields), body=body)).ext

    def batch(self, bodies: list[bytes]) -> None:
        """Send a batch. Apache gives the batch's unique key to each of its messages."""
        inner = []
        for body in bodies:
            self._number += 1
            key = f"k{self._number}"
            block = props.encode({props.KEYS: key, props.TAGS: "in-batch"})
            head = b"".join(n.to_bytes(4, "big") for n in (len(body) + len(block) + 22, 0, 0, 3, len(body)))
            inner.append(head + body + len(block).to_bytes(2, "big") + block)
            self.sent.append(Sent(body.hex(), TOPIC, 0, [key], 0))
        self._ask(b"".join(inner), {props.UNIQ_KEY: f"{self._number:032X}"}, 0, batch=True)

    def transaction(self, body: bytes, outcome: int | None) -> None:
        """Send a half message, and end it: 8 commits it, 12 rolls it back, None leaves it open."""
        key = f"{self._number + 1:032X}"
        half = self.send(body, is_gone=outcome != 8, sys_flag=SYS_PREPARED, TRAN_MSG="true", PGROUP=GROUP)
        if outcome is None:
            return
        fields = headers.texts(
            topic=TOPIC,
            producerGroup=GROUP,
            tranStateTableOffset=half["queueOffset"],
            commitLogOffset=int(half["msgId"][-16:], 16),
            commitOrRollback=outcome,
            fromTransactionCheck=False,
            msgId=key,
            transactionId=key,
        )
        self._link.ask(Command(code=RequestCode.END_TRANSACTION, ext=fields))
        if outcome == 8:
            self.sent[-1].sys_flag |= 8

    def give_back(self, message_id: str, group: str, level: int, *, is_pending: bool) -> None:
        """Send the last message back, to be consumed again after `level`."""
        fields = headers.texts(
            offset=int(message_id[-16:], 16),
            group=group,
            delayLevel=level,
            originMsgId=self.sent[-1].keys[1],
            originTopic=TOPIC,
            unitMode=False,
            maxReconsumeTimes=16,
        )
        due_ms = now_ms() + {1: 1000, 4: 30_000}[level]
        self._link.ask(Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, ext=fields))
        last = self.sent[-1]
        again = Sent(last.body, retry_topic(group), 0, last.keys, last.sys_flag, due_ms if is_pending else None)
        self.sent.append(again)

    def commit_offset(self) -> None:
        fields = headers.texts(consumerGroup=GROUP, topic=TOPIC, queueId=0, commitOffset=CONSUMED)
        self._link.ask(Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, ext=fields))

    def queue_end(self, topic: str) -> int:
        fields = headers.texts(topic=topic, queueId=0, committed=True)
        return int(self._link.ask(Command(code=RequestCode.GET_MAX_OFFSET, ext=fields)).ext["offset"])

    def await_queue(self, topic: str, count: int) -> None:
        """Wait until the queue of `topic` has `count` messages."""
        until(lambda: self.queue_end(topic) >= count)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("what Apache was to do has not come")
        time.sleep(0.05)


def live_on_ipv6(sender: Sender) -> None:
    """Send the messages that are stored with IPv6 hosts. Some are pending when the broker stops."""
    sender.send(b"ipv6", TAGS="six")
    sender.send(zlib.compress(TEXT), sys_flag=SYS_ZLIB)
    soon_ms = now_ms() + HOUR_MS + 77
    sender.send(b"ipv6 timer", due_ms=soon_ms, TIMER_DELIVER_MS=str(soon_ms))
    sender.send(b"ipv6 level", due_ms=now_ms() + 120_000, DELAY="6")


def live(sender: Sender) -> None:
    """Send one message of each kind. Some are delivered, some pending when the broker ends."""
    before = sender.queue_end(TOPIC)
    due_ms = now_ms() + HOUR_MS
    sender.send(b"rolls", due_ms=due_ms, TIMER_DELIVER_MS=str(due_ms))
    sender.send("grüße".encode(), TAGS="TagA", colour="grün")
    sender.send(TEXT, TAGS="TagB")
    for sys_flag in (SYS_ZLIB, SYS_OLD_ZLIB):
        sender.send(zlib.compress(TEXT), sys_flag=sys_flag)
    sender.send(lz4_frame(TEXT), sys_flag=SYS_LZ4)
    sender.send(zstd_frame(TEXT), sys_flag=SYS_ZSTD)
    sender.batch([b"b0", b"b1", b"b2"])
    for outcome in (None, 8, 12):
        sender.transaction(b"transaction %d" % (outcome or 0), outcome)
    for group, level in ((GROUP, 1), (LONG_GROUP, 1), (GROUP, 4)):
        stored = sender.send(b"again after level %d for %s" % (level, group[:9].encode()))
        sender.give_back(stored["msgId"], group, level, is_pending=level == 4)
    gone_ms = now_ms() + 2500
    sender.send(b"cancelled", is_gone=True, TIMER_DELIVER_MS=str(gone_ms))
    sender.cancel(gone_ms)
    for i in range(30):
        sender.send(b"%04d" % i * 500, TAGS="filler")  # so that the log has several files
    parked = sender.queue_end("rmq_sys_wheel_timer")
    sender.await_queue("rmq_sys_wheel_timer", parked + 2)  # rolls, each within ten seconds
    sender.commit_offset()
    sender.send(b"level 1", DELAY="1")
    sender.send(b"after 1 s", TIMER_DELAY_SEC="1")
    sender.send(zlib.compress(b"after 1.2 s"), sys_flag=SYS_ZLIB, TIMER_DELAY_MS="1200")
    sender.await_queue(retry_topic(GROUP), 1)
    sender.await_queue(retry_topic(LONG_GROUP), 1)
    delivered = sum(one.topic == TOPIC and one.due_ms is None and not one.is_gone for one in sender.sent)
    sender.await_queue(TOPIC, before + delivered)
    due_ms = now_ms() + HOUR_MS + 123
    sender.send(b"exact", due_ms=due_ms, TIMER_DELIVER_MS=str(due_ms), TAGS="TagA")
    sender.send(b"to be cancelled", is_gone=True, TIMER_DELIVER_MS=str(due_ms))
    sender.cancel(due_ms)
    sender.send(b"after 9 s", due_ms=now_ms() + 9000, TIMER_DELAY_SEC="9")
    sender.send(zlib.compress(b"after 8 s"), sys_flag=SYS_ZLIB, due_ms=now_ms() + 8000, TIMER_DELAY_MS="8000")
    sender.send(b"level 4", due_ms=now_ms() + 30_000, DELAY="4", TAGS="TagB")
    sender.send(zlib.compress(b"level 5"), sys_flag=SYS_ZLIB, due_ms=now_ms() + 60_000, DELAY="5")
    sender.send(b"last")


def lz4_frame(text: bytes) -> bytes:
    """Return `text` as an LZ4 frame of one uncompressed block, without checksums of the content."""
    descriptor = b"\x60\x40"  # version 1, independent blocks; blocks of 64 KiB
    size = (len(text) | 1 << 31).to_bytes(4, "little")
    return b"\x04\x22\x4d\x18" + descriptor + b"\x82" + size + text + bytes(4)


def zstd_frame(text: bytes) -> bytes:
    """Return `text` as a Zstandard frame of one raw block."""
    assert len(text) < 256
    single_segment = b"\x20" + bytes([len(text)])
    last_raw_block = (len(text) << 3 | 1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd" + single_segment + last_raw_block + text
