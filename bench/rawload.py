"""A load of raw frames: many connections, each with a window of sends in flight.

A compiled loop builds the frames from a template, so that one process can send more than a broker can accept. The
unique keys of messages count up, so that a reader of the queues can find each message.
"""

from __future__ import annotations

import argparse
import json
import re
import selectors
import socket
import ssl
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numba import njit

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
UNIQ_DIGITS = 10
PREFIX = "00000000000000BE0CB000"
INNER_HEAD = struct.Struct(">iiiii")
"""Head of a message in a batch: size, magic, body crc, flag, body size (RocketMQ: MessageDecoder.encodeMessage)."""

OPAQUE_BASE = 10_000_000
OPAQUE_COUNT = 80_000_000
"""An opaque identifies its message up to this number of messages."""

LAST_ANSWERS_S = 30.0
"""How long the generator waits for answers after the last send."""


@dataclass
class Template:
    """The bytes of one frame, and the places of its variable parts."""

    frame: Bytes
    opaque_at: int
    uniq_at: Integers
    """Places of the digits of unique keys: that of the message, or those of the batch and of each message in it."""
    time_at: int
    """Place of the 13 digits of TIMER_DELIVER_MS; -1 for a plain message."""
    queue_at: int


def template(topic: str, body_bytes: int, *, timed: bool, prefix: str = PREFIX, batch: int = 1) -> Template:
    """Return a send frame for `topic` with a body of `body_bytes`.

    Its unique keys begin with `prefix` (22 characters).

    With a `batch` above 1 it holds this number of messages, encoded as by the Java client.
    """
    assert len(prefix) == 32 - UNIQ_DIGITS
    timer = "TIMER_DELIVER_MS\\u00010000000000000\\u0002" if timed else ""
    named = f"UNIQ_KEY\\u0001{prefix}{'0' * UNIQ_DIGITS}\\u0002WAIT\\u0001true\\u0002"
    tagged = f"{named}TAGS\\u0001TagA\\u0002"
    properties = f"{timer}{tagged}" if batch == 1 else named
    code, is_batch = (310, "false") if batch == 1 else (320, "true")
    ext = (
        f'"a":"bench","b":"{topic}","c":"TBW102","d":"4","e":"0","f":"0","g":"{int(time.time() * 1000)}","h":"0",'
        f'"i":"{properties}","j":"0","k":"false","m":"{is_batch}"'
    )
    header = (
        f'{{"code":{code},"extFields":{{{ext}}},"flag":0,"language":"JAVA","opaque":{OPAQUE_BASE},'
        f'"serializeTypeCurrentRPC":"JSON","version":479}}'
    ).encode()
    body = b"x" * body_bytes
    if batch > 1:
        inner = tagged.replace("\\u0001", "\1").replace("\\u0002", "\2").encode()
        size = INNER_HEAD.size + body_bytes + 2 + len(inner)
        body = batch * (INNER_HEAD.pack(size, 0, 0, 0, body_bytes) + body + struct.pack(">h", len(inner)) + inner)
    frame = struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body
    uniq_at = [found.end() for found in re.finditer(prefix.encode(), frame)]
    return Template(
        frame=np.frombuffer(frame, np.uint8).copy(),
        opaque_at=frame.index(b'"opaque":') + 9,
        uniq_at=np.array(uniq_at, np.int64),
        time_at=frame.index(b"TIMER_DELIVER_MS") + 22 if timed else -1,
        queue_at=frame.index(b'"e":"') + 5,
    )


@njit(cache=True)
def build(template, opaque_at, uniq_at, time_at, queue_at, queues, first, count, deliver_ms, out):  # type: ignore[no-untyped-def]
    """Write `count` frames for the messages, or batches, first, first + 1, ...

    to `out`. Returns the number of bytes.
    """
    n = template.shape[0]
    for i in range(count):
        at = i * n
        out[at : at + n] = template
        number = first + i
        value = OPAQUE_BASE + number % OPAQUE_COUNT
        for k in range(8):
            out[at + opaque_at + 7 - k] = 48 + value % 10
            value //= 10
        for j in range(uniq_at.shape[0]):
            value = number * uniq_at.shape[0] + j
            for k in range(UNIQ_DIGITS):
                out[at + uniq_at[j] + UNIQ_DIGITS - 1 - k] = HEX[value & 15]
                value >>= 4
        out[at + queue_at] = 48 + number % queues
        if time_at >= 0:
            value = deliver_ms[number & 1]
            for k in range(13):
                out[at + time_at + 12 - k] = 48 + value % 10
                value //= 10
    return count * n


@njit(cache=True)
def find_opaque(data, at, stop):  # type: ignore[no-untyped-def]
    """Return the number after `"opaque":` in data[at:stop]; -1 if there is none."""
    for p in range(at, stop - 9):
        # its q distinguishes "opaque": from the other names in an answer
        if data[p + 3] == 97 and data[p + 4] == 113 and data[p + 5] == 117 and data[p + 8] == 58:
            value = 0
            p += 9
            while p < stop and 48 <= data[p] <= 57:
                value = value * 10 + (data[p] - 48)
                p += 1
            return value
    return -1


@njit(cache=True)
def count_answers(data, end, taken):  # type: ignore[no-untyped-def]
    """Return the number of whole frames in data[:end], the number of them with code 0, and the beginning of the rest.

    Sets `taken[number]` for each message with code 0, unless `taken` is empty.
    """
    at = 0
    frames = 0
    good = 0
    while end - at >= 4:
        length = (
            (np.int64(data[at]) << 24) | (np.int64(data[at + 1]) << 16) | (np.int64(data[at + 2]) << 8) | data[at + 3]
        )
        stop = at + 4 + length
        if stop > end:
            break
        # both brokers write `"code":0,` within the first bytes of their JSON header
        for p in range(at + 8, min(at + 24, stop)):
            if data[p] == 101 and data[p + 1] == 34 and data[p + 2] == 58:  # e":
                if data[p + 3] == 48:
                    good += 1
                    if taken.shape[0]:
                        number = find_opaque(data, at, stop) - OPAQUE_BASE
                        if 0 <= number < taken.shape[0]:
                            taken[number] = 1
                break
        frames += 1
        at = stop
    return frames, good, at


@dataclass
class Peer:
    """One connection and its state."""

    socket: socket.socket
    received: bytearray = field(default_factory=lambda: bytearray(1 << 20))
    filled: int = 0
    in_flight: int = 0
    pending: memoryview = field(default_factory=lambda: memoryview(b""))


@dataclass
class Result:
    sent: int = 0
    answered: int = 0
    good: int = 0
    seconds: float = 0.0
    first_ms: int = 0
    last_ms: int = 0
    processor_seconds: float = 0.0
    """Processor seconds of this process while it was sending."""
    frame_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Load:
    """The load: for `seconds` or `messages`, as fast as the window permits or at `rate` per second.

    A timer is due `delays_ms` after its send (one delay for even and one for odd numbers), or at `deliver_at_ms`.
    """

    body_bytes: int = 256
    connections: int = 16
    window: int = 64
    seconds: float = 10.0
    messages: int | None = None
    rate: float | None = None
    delays_ms: tuple[int, int] | None = None
    deliver_at_ms: int | None = None
    queues: int = 4
    prefix: str = PREFIX
    batch: int = 1
    """Messages per frame. `messages`, `rate` and all results count frames."""
    tls: bool = False
    """Connect with TLS, and trust any certificate."""

    @property
    def is_timed(self) -> bool:
        return self.delays_ms is not None or self.deliver_at_ms is not None


def dial(host: str, port: int, *, tls: bool = False) -> socket.socket:
    """Connect to a broker. With `tls` any certificate is accepted."""
    plain = socket.create_connection((host, port))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not tls:
        return plain
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain)


def receive(connection: socket.socket, room: memoryview) -> int:
    """Receive bytes, and with TLS all that are decrypted already. Raises ConnectionError at the end of the stream."""
    try:
        count = filled = connection.recv_into(room)
        while count and isinstance(connection, ssl.SSLSocket) and connection.pending() and filled < len(room):
            count = connection.recv_into(room[filled:])
            filled += count
    except ssl.SSLWantReadError:
        return 0
    if not count:
        raise ConnectionError("the broker closed a connection")
    return filled


class Generator:
    """One run of a load. `taken` has one byte per message, which is set by an answer with code 0."""

    def __init__(self, address: str, topic: str, load: Load, taken: Bytes | None = None) -> None:
        self.load = load
        self.result = Result()
        self._template = template(topic, load.body_bytes, timed=load.is_timed, prefix=load.prefix, batch=load.batch)
        self.result.frame_bytes = len(self._template.frame)
        self._taken = np.zeros(0, np.uint8) if taken is None else taken
        self._out = np.zeros(load.window * len(self._template.frame), np.uint8)
        self._deliver_ms = np.zeros(2, np.int64)
        self._compile()
        self._selector = selectors.DefaultSelector()
        self._peers: list[Peer] = []
        host, _, port = address.rpartition(":")
        for _ in range(load.connections):
            connection = dial(host, int(port), tls=load.tls)
            connection.setblocking(False)
            peer = Peer(connection)
            self._peers.append(peer)
            self._selector.register(connection, selectors.EVENT_READ, peer)
        self._began = self._stop_at = 0.0

    def _compile(self) -> None:
        """Compile the kernels before the measured time."""
        self._build(0, 1)
        count_answers(np.zeros(8, np.uint8), 0, self._taken)

    def run(self) -> Result:
        """Send, and wait for the last answers. Raises ConnectionError if the broker closes a connection."""
        result, load = self.result, self.load
        processor = time.process_time()
        result.first_ms = int(time.time() * 1000)
        self._began = time.monotonic()
        self._stop_at = self._began + load.seconds
        pause = 0.0005 if load.rate is not None else 0.05
        while True:
            now = time.monotonic()
            for peer in self._peers:
                self._feed(peer, now)
            if self._is_over(now):
                break
            for key, events in self._selector.select(pause):
                if events & selectors.EVENT_WRITE:
                    self._push(key.data)
                if events & selectors.EVENT_READ:
                    self._pull(key.data)
                    self._feed(key.data, now)
        result.seconds = time.monotonic() - self._began
        result.last_ms = int(time.time() * 1000)
        result.processor_seconds = time.process_time() - processor
        for peer in self._peers:
            peer.socket.close()
        return result

    def _is_over(self, now: float) -> bool:
        if now > self._stop_at + LAST_ANSWERS_S:
            return True
        sends_no_more = now >= self._stop_at or (self.load.rate is None and not self._allowed(now))
        if self.load.messages is not None and self.result.sent >= self.load.messages:
            sends_no_more = True
        return sends_no_more and not any(peer.in_flight for peer in self._peers)

    def _allowed(self, now: float) -> int:
        load, sent = self.load, self.result.sent
        left = load.messages - sent if load.messages is not None else 1 << 60
        if load.rate is not None:
            left = min(left, int((now - self._began) * load.rate) - sent)
        return max(0, left)

    def _feed(self, peer: Peer, now: float) -> None:
        if peer.pending or now >= self._stop_at:
            return
        count = min(self.load.window - peer.in_flight, self._allowed(now))
        if count <= 0:
            return
        size = self._build(self.result.sent, count)
        self.result.sent += count
        peer.in_flight += count
        peer.pending = memoryview(self._out[:size].tobytes())
        self._push(peer)

    def _build(self, first: int, count: int) -> int:
        load, made = self.load, self._template
        if load.deliver_at_ms is not None:
            self._deliver_ms[:] = load.deliver_at_ms
        elif load.delays_ms is not None:
            self._deliver_ms[:] = load.delays_ms
            self._deliver_ms += int(time.time() * 1000)
        places = (made.opaque_at, made.uniq_at, made.time_at, made.queue_at)
        return int(build(made.frame, *places, load.queues, first, count, self._deliver_ms, self._out))

    def _push(self, peer: Peer) -> None:
        try:
            while peer.pending:
                done = peer.socket.send(peer.pending)
                peer.pending = peer.pending[done:]
        except (BlockingIOError, ssl.SSLWantWriteError):
            pass
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.pending else 0)
        if self._selector.get_key(peer.socket).events != wanted:
            self._selector.modify(peer.socket, wanted, peer)

    def _pull(self, peer: Peer) -> None:
        peer.filled += receive(peer.socket, memoryview(peer.received)[peer.filled :])
        frames, good, at = count_answers(np.frombuffer(peer.received, np.uint8), peer.filled, self._taken)
        if at:
            peer.received[: peer.filled - at] = peer.received[at : peer.filled]
            peer.filled -= at
        peer.in_flight -= frames
        self.result.answered += frames
        self.result.good += good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="127.0.0.1:10911")
    parser.add_argument("--topic", default="Bench")
    parser.add_argument("--body-bytes", type=int, default=256)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--messages", type=int)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--delays-ms", type=int, nargs=2)
    parser.add_argument("--deliver-at-ms", type=int)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--prefix", default=PREFIX, help="of the unique keys")
    parser.add_argument("--batch", type=int, default=1, help="messages in a frame")
    parser.add_argument("--tls", action="store_true", help="connect with TLS")
    parser.add_argument("--taken", type=Path, metavar="FILE", help="write there which messages were taken, as a .npy")
    options = vars(parser.parse_args())
    address, topic, taken_path = options.pop("address"), options.pop("topic"), options.pop("taken")
    options["delays_ms"] = tuple(options["delays_ms"]) if options["delays_ms"] else None
    taken = np.zeros(OPAQUE_COUNT, np.uint8) if taken_path is not None else None
    result = Generator(address, topic, Load(**options), taken).run()
    if taken is not None:
        np.save(taken_path, taken[: result.sent])
    print(json.dumps({**result.__dict__, "per_second": round(result.good / result.seconds)}))


if __name__ == "__main__":
    main()
