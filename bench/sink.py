"""A server that answers each send at once from a template, and does nothing else.

It shows the highest rate of the generator (bench/rawload.py), which limits every figure that the generator measures.
It prints its address, and ends with its standard input.
"""

from __future__ import annotations

import selectors
import socket
import struct
import sys

import numpy as np
from numba import njit

from bench.rawload import Bytes, find_opaque

RECEIVE_BYTES = 1 << 20


def answer_template() -> Bytes:
    """Return an answer as a broker sends it, with an opaque of 8 digits at the end of its header."""
    header = (
        b'{"code":0,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","msgId":"7F00000100002A9F0000000000000000"'
        b',"queueId":"0","queueOffset":"0","transactionId":"00000000000000BE0CB0000000000000"},"flag":1,'
        b'"language":"JAVA","serializeTypeCurrentRPC":"JSON","version":479,"opaque":10000000}'
    )
    return np.frombuffer(struct.pack(">ii", 4 + len(header), len(header)) + header, np.uint8).copy()


@njit(cache=True)
def answer(data, end, template, out):  # type: ignore[no-untyped-def]
    """Answer the whole frames at the start of data[:end].

    Returns the written bytes, and the beginning of the rest.
    """
    at = 0
    written = 0
    n = template.shape[0]
    while end - at >= 4 and written + n <= out.shape[0]:
        length = (
            (np.int64(data[at]) << 24) | (np.int64(data[at + 1]) << 16) | (np.int64(data[at + 2]) << 8) | data[at + 3]
        )
        stop = at + 4 + length
        if stop > end:
            break
        # the generator's header has the opaque after the properties
        value = find_opaque(data, at + 200, stop)
        out[written : written + n] = template
        for k in range(8):
            out[written + n - 2 - k] = 48 + value % 10
            value //= 10
        written += n
        at = stop
    return written, at


class _Peer:
    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.received = bytearray(RECEIVE_BYTES)
        self.filled = 0
        self.pending = memoryview(b"")


class Sink:
    """A server with one loop over all connections."""

    def __init__(self) -> None:
        self._template = answer_template()
        self._out = np.zeros(RECEIVE_BYTES, np.uint8)
        answer(np.zeros(8, np.uint8), 0, self._template, self._out)  # compiles before any connection
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        """Answer until the standard input ends."""
        while True:
            for key, events in self._selector.select():
                if key.fileobj is sys.stdin:
                    if not sys.stdin.buffer.read1(1):  # type: ignore[attr-defined]
                        return
                elif key.data is None:
                    self._accept()
                else:
                    self._serve(key.data, events)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(connection, selectors.EVENT_READ, _Peer(connection))

    def _serve(self, peer: _Peer, events: int) -> None:
        if events & selectors.EVENT_READ and not peer.pending:
            try:
                count = peer.socket.recv_into(memoryview(peer.received)[peer.filled :])
            except ConnectionError:
                count = 0
            if not count:
                self._selector.unregister(peer.socket)
                peer.socket.close()
                return
            peer.filled += count
            size, at = answer(np.frombuffer(peer.received, np.uint8), peer.filled, self._template, self._out)
            peer.received[: peer.filled - at] = peer.received[at : peer.filled]
            peer.filled -= at
            peer.pending = memoryview(self._out[:size].tobytes())
        self._push(peer)

    def _push(self, peer: _Peer) -> None:
        try:
            while peer.pending:
                peer.pending = peer.pending[peer.socket.send(peer.pending) :]
        except BlockingIOError:
            pass
        wanted = selectors.EVENT_WRITE if peer.pending else selectors.EVENT_READ
        if self._selector.get_key(peer.socket).events != wanted:
            self._selector.modify(peer.socket, wanted, peer)


def main() -> None:
    sink = Sink()
    print(sink.address, flush=True)
    sink.run()


if __name__ == "__main__":
    main()
