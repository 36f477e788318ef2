"""The load: messages of all kinds, alone and in batches, at a steady rate over connections that outlive the broker.

A broken connection is opened again, and its open requests never get an answer. Without a connection nothing is sent,
and the missed messages are not sent later.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import struct
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.crash.notes import OUTCOMES, QUEUES, TOPICS, Fate, Kind, Notes, Outcome, body
from wheelmq.client.outgoing import encode_batch
from wheelmq.formats.disk.parked import delete_key
from wheelmq.formats.wire import frame, headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode

STEP_S: Final = 0.01
RETRY_S: Final = 0.02
WINDOW: Final = 512
"""Requests in flight on one connection. A full connection gets no more requests."""
BATCH: Final = (2, 16)
"""Least and most messages in a batch."""
CANDIDATES: Final = 4096
CANCEL_AHEAD_MS: Final = 30
"""Least time from a cancel to its target's due time. Most cancels succeed, some do not."""
LEVELS_MS: Final = (1000, 5000, 10_000)
"""The delays of the first levels."""

NO_PROMISE: Final = (
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
"""The message is stored, but perhaps not on disk or on enough brokers."""

_FRAME = struct.Struct(">ii")


@dataclass(frozen=True)
class Mix:
    """The composition of the load: shares of all messages, and of the delays."""

    kinds: tuple[tuple[Kind, float], ...] = (
        (Kind.DELIVER_AT, 0.52),
        (Kind.IN_BLOCK, 0.12),
        (Kind.DELAY_MS, 0.15),
        (Kind.DELAY_SEC, 0.05),
        (Kind.LEVEL, 0.05),
        (Kind.PLAIN, 0.05),
        (Kind.CANCEL, 0.06),
    )
    delays_ms: tuple[tuple[float, int, int], ...] = (
        (0.25, 50, 1000),
        (0.45, 1000, 8000),
        (0.22, 8000, 20_000),
        (0.05, 31_000, 35_000),  # beyond the lead
        (0.03, 36_000, 52_000),  # beyond a roll window of 35 s
    )
    whole_second_share: float = 0.05
    """Share of the messages with a chosen time that are due at a whole second, where many meet and a slot ends."""
    batch_share: float = 0.0
    """Share of the requests with one plain message that carry a batch of plain messages instead."""
    body_bytes: int = 64

    @property
    def delay_ms_max(self) -> int:
        return max(most for _, _, most in self.delays_ms)


class _Peer(asyncio.Protocol):
    """One connection. Its answers go to the load, and its end sets an event."""

    def __init__(self, on_answer: Callable[[frame.Command], None]) -> None:
        self._on_answer = on_answer
        self._buffer = bytearray()
        self.transport: asyncio.Transport | None = None
        self.in_flight = 0
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        while (end := frame.frame_end(self._buffer, at, len(self._buffer))) is not None:
            self.in_flight -= 1
            self._on_answer(frame.decode(self._buffer, at, end))
            at = end
        del self._buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.lost.set()


class Load:
    """Sends until `stop`. `notes` has the results."""

    def __init__(self, address: str, mix: Mix, rate: float, seed: int, connections: int = 4) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._mix = mix
        self._rate = rate
        self._random = random.Random(seed)
        self.notes = Notes(f"{self._random.getrandbits(88):022X}")
        self._peers: list[_Peer | None] = [None] * connections
        self._candidates: deque[int] = deque(maxlen=CANDIDATES)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._batches: dict[int, int] = {}
        """Number of messages of each batch without an answer, by the number of its first message."""
        self.acknowledged = 0
        self.is_held = False
        """Whether sending is paused."""
        self.refusals: Counter[str] = Counter()
        self.reconnects = 0

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._keep(i)) for i in range(len(self._peers))]
        self._tasks.append(asyncio.create_task(self._pace()))

    async def stop(self, grace_s: float = 5.0) -> None:
        """Stop sending, and wait for the missing answers."""
        self._stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while any(peer is not None and peer.in_flight for peer in self._peers):
                    await asyncio.sleep(STEP_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for peer in self._peers:
            if peer is not None and peer.transport is not None:
                peer.transport.abort()

    async def _keep(self, i: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                _, peer = await loop.create_connection(lambda: _Peer(self._answered), self._host, self._port)
            except OSError:
                await asyncio.sleep(RETRY_S)
                continue
            self.reconnects += 1
            self._peers[i] = peer
            await peer.lost.wait()
            self._peers[i] = None

    async def _pace(self) -> None:
        owed = 0.0
        last = time.monotonic()
        while not self._stopping:
            await asyncio.sleep(STEP_S)
            now = time.monotonic()
            owed = min(owed + (now - last) * self._rate, self._rate / 4)
            last = now
            ready = [p for p in self._peers if p is not None and p.transport is not None and p.in_flight < WINDOW]
            if not ready or self.is_held:
                owed = 0.0
                continue
            count, owed = int(owed), owed % 1
            for i, peer in enumerate(ready):
                share = count // len(ready) + (i < count % len(ready))
                if share:
                    self._send(peer, share)

    def _send(self, peer: _Peer, count: int) -> None:
        now_ms = time.time_ns() // 1_000_000
        kinds, weights = zip(*self._mix.kinds, strict=True)
        chosen = self._random.choices(kinds, weights, k=count)
        assert peer.transport is not None
        peer.in_flight += count
        peer.transport.write(b"".join([self._frame(kind, now_ms) for kind in chosen]))

    # Messages ------------------------------------------------------------------------------------------------------

    def _frame(self, kind: Kind, now_ms: int) -> bytes:
        if kind is Kind.CANCEL:
            return self._cancel_frame(now_ms)
        topic, queue = self._random.randrange(len(TOPICS)), self._random.randrange(QUEUES)
        if kind is Kind.PLAIN and self._random.random() < self._mix.batch_share:
            return self._batch_frame(topic, queue, now_ms)
        delay_ms, asked = self._delay(kind, now_ms)
        due_ms = delay_ms + now_ms if kind is Kind.DELIVER_AT else 0
        number = self.notes.add(
            kind,
            topic=topic,
            queue=queue,
            asked_ms=now_ms,
            due_ms=due_ms,
            delay_ms=0 if kind is Kind.DELIVER_AT else delay_ms,
        )
        return self._encode(number, topic, queue, asked)

    def _delay(self, kind: Kind, now_ms: int) -> tuple[int, dict[str, str]]:
        """Return a delay, and the property that requests it."""
        delays = self._mix.delays_ms
        _, least, most = self._random.choices(delays, [share for share, _, _ in delays])[0]
        delay_ms = self._random.randint(least, most)
        match kind:
            case Kind.DELIVER_AT:
                if self._random.random() < self._mix.whole_second_share:
                    delay_ms += -(now_ms + delay_ms) % 1000
                return delay_ms, {"TIMER_DELIVER_MS": str(now_ms + delay_ms)}
            case Kind.DELAY_MS:
                return delay_ms, {"TIMER_DELAY_MS": str(delay_ms)}
            case Kind.DELAY_SEC:
                seconds = -(-delay_ms // 1000)
                return seconds * 1000, {"TIMER_DELAY_SEC": str(seconds)}
            case Kind.IN_BLOCK:
                seconds = -(-delay_ms // 1000)
                return seconds * 1000, {"delayInSeconds": str(seconds)}
            case Kind.LEVEL:
                possible = [i for i, level_ms in enumerate(LEVELS_MS) if level_ms <= self._mix.delay_ms_max]
                level = self._random.choice(possible)
                return LEVELS_MS[level], {"DELAY": str(level + 1)}
        return 0, {}

    def _batch_frame(self, topic: int, queue: int, now_ms: int) -> bytes:
        """Return the frame of several plain messages in one request.

        Its opaque is the number of the first message.
        """
        count = self._random.randint(*BATCH)
        numbers = [self.notes.add(Kind.PLAIN, topic=topic, queue=queue, asked_ms=now_ms) for _ in range(count)]
        inner = [(body(number, self._mix.body_bytes), {"UNIQ_KEY": self.notes.key(number)}) for number in numbers]
        self._batches[numbers[0]] = count
        command = frame.Command(code=RequestCode.SEND_BATCH_MESSAGE, opaque=numbers[0], body=encode_batch(inner))
        command.ext = headers.texts(
            a="crash", b=TOPICS[topic], c="TBW102", d=QUEUES, e=queue, f=0, g=now_ms, h=0, i="", j=0, k=False, m=True
        )
        return frame.encode(command)

    def _cancel_frame(self, now_ms: int) -> bytes:
        """Return the frame of a cancel: usually of a pending message, sometimes of a cancelled one or of none."""
        target, due_ms = self._target(now_ms)
        if target < 0:
            topic, key = 0, f"{self.notes.key_prefix}{self._random.getrandbits(39):09X}X"
        else:
            topic, key = int(self.notes[target]["topic"]), self.notes.key(target)
        queue = self._random.randrange(QUEUES)
        number = self.notes.add(Kind.CANCEL, topic=topic, queue=queue, asked_ms=now_ms, target=target)
        asked = {"TIMER_DELIVER_MS": str(due_ms), "TIMER_DEL_UNIQKEY": delete_key(TOPICS[topic], key)}
        return self._encode(number, topic, queue, asked)

    def _target(self, now_ms: int) -> tuple[int, int]:
        for _ in range(8):
            if not self._candidates or self._random.random() < 0.01:
                break
            i = self._random.randrange(len(self._candidates))
            target = self._candidates[i]
            row = self.notes[target]
            due_ms = int(row["due_ms"]) or int(row["asked_ms"] + row["delay_ms"])
            if due_ms < now_ms + CANCEL_AHEAD_MS or self._random.random() < 0.95:
                del self._candidates[i]
            if due_ms >= now_ms + CANCEL_AHEAD_MS:
                return target, due_ms
        return -1, now_ms + 1000

    def _encode(self, number: int, topic: int, queue: int, asked: dict[str, str]) -> bytes:
        pairs = {**asked, "UNIQ_KEY": self.notes.key(number), "WAIT": "true", "TAGS": "TagC"}
        properties = "".join(f"{name}\\u0001{value}\\u0002" for name, value in pairs.items())
        header = (
            f'{{"code":{int(RequestCode.SEND_MESSAGE_V2)},"extFields":{{"a":"crash","b":"{TOPICS[topic]}",'
            f'"c":"TBW102","d":"{QUEUES}","e":"{queue}","f":"0","g":"{self.notes[number]["asked_ms"]}","h":"0",'
            f'"i":"{properties}","j":"0","k":"false","m":"false"}},"flag":0,"language":"JAVA","opaque":{number},'
            f'"serializeTypeCurrentRPC":"JSON","version":479}}'
        ).encode()
        payload = body(number, self._mix.body_bytes)
        return _FRAME.pack(4 + len(header) + len(payload), len(header)) + header + payload

    # Answers -------------------------------------------------------------------------------------------------------

    def _answered(self, answer: frame.Command) -> None:
        number, now_ms = answer.opaque, time.time_ns() // 1_000_000
        count = self._batches.pop(number, 1)
        if answer.code in NO_PROMISE:
            self.refusals[ResponseCode(answer.code).name] += 1
            return
        if answer.code != ResponseCode.SUCCESS:
            self.refusals[f"{answer.code} {answer.remark}"[:200]] += 1
            for refused in range(number, number + count):
                self.notes.answer(refused, Fate.REFUSED, now_ms)
            return
        self.acknowledged += count
        kind = self.notes[number]["kind"]
        if kind == Kind.CANCEL:
            self.notes.answer(number, Fate.STORED, now_ms, OUTCOMES.get(answer.ext["cancelResult"], Outcome.NONE))
            return
        queue_offset = int(answer.ext["queueOffset"])
        origin = int(answer.ext["msgId"][-16:], 16) if kind == Kind.IN_BLOCK else -1
        for i in range(count):
            self.notes.answer(number + i, Fate.STORED, now_ms, queue_offset=queue_offset + i, origin=origin)
        if kind != Kind.PLAIN:
            self._candidates.append(number)

    def summary(self) -> str:
        """Return the figures of the sends so far as one line."""
        return json.dumps({"sent": self.notes.count, "connections": self.reconnects, "refusals": dict(self.refusals)})
