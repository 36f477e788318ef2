"""The blocking connection, its pending requests, and a server that closes it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from wheelmq.formats.wire import frame
from wheelmq.formats.wire.frame import FLAG_RESPONSE, Command
from wheelmq.net.errors import CallError
from wheelmq.net.sync_connection import BoundedConnection, SyncConnection


def serve_once(listener: socket.socket, closed: threading.Event) -> None:
    """Answer one request on each of two connections, and close each connection after its answer."""
    for _ in range(2):
        connection, _ = listener.accept()
        raw = connection.recv(1 << 16)
        request = frame.decode(raw, 0, len(raw))
        connection.sendall(frame.encode(Command(code=0, opaque=request.opaque, flag=FLAG_RESPONSE)))
        connection.close()
        closed.set()


def test_a_connection_closed_by_the_server_is_opened_again() -> None:
    closed = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve_once, args=(listener, closed), daemon=True)
        server.start()
        link = SyncConnection(f"127.0.0.1:{listener.getsockname()[1]}")
        assert link.call(Command(code=1)).code == 0
        assert closed.wait(5)
        assert link._socket is not None and link._socket.recv(1, socket.MSG_PEEK) == b""  # its end has arrived
        assert link.call(Command(code=1)).code == 0
        link.close()
        server.join(5)


def serve_backwards(listener: socket.socket, count: int) -> None:
    """Answer `count` requests of one connection, the last one first, and close it without an answer to one more."""
    connection, _ = listener.accept()
    raw, requests = b"", []
    while len(requests) < count:
        raw += connection.recv(1 << 16)
        while (end := frame.frame_end(raw, 0, len(raw))) is not None:
            requests.append(frame.decode(raw, 0, end))
            raw = raw[end:]
    for request in reversed(requests):
        answer = Command(code=request.code, opaque=request.opaque, flag=FLAG_RESPONSE)
        connection.sendall(frame.encode(answer))
    connection.recv(1 << 16)
    connection.close()


def test_requests_may_be_pending_together_and_answered_in_any_order() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve_backwards, args=(listener, 3), daemon=True)
        server.start()
        link = SyncConnection(f"127.0.0.1:{listener.getsockname()[1]}")
        numbers = [link.begin(Command(code=code)) for code in (5, 6, 7)]
        assert [link.finish(number).code for number in numbers] == [5, 6, 7]
        lost = [link.begin(Command(code=8)), link.begin(Command(code=9))]
        for number in lost:
            with pytest.raises(CallError):
                link.finish(number)
        server.join(5)


def trickle(listener: socket.socket, answered: threading.Event) -> None:
    """Answer the first request at once. Send the answer to the second one byte by byte, until the client leaves."""
    connection, _ = listener.accept()
    for is_slow in (False, True):
        raw = connection.recv(1 << 16)
        request = frame.decode(raw, 0, len(raw))
        answer = frame.encode(Command(code=0, opaque=request.opaque, flag=FLAG_RESPONSE, body=b"x" * 10_000))
        if not is_slow:
            connection.sendall(answer)
            continue
        with contextlib.suppress(OSError):
            for i in range(len(answer)):
                connection.sendall(answer[i : i + 1])
                answered.wait(0.01)
    connection.close()


def test_a_bounded_connection_waits_for_its_time_in_total() -> None:
    left = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=trickle, args=(listener, left), daemon=True)
        server.start()
        link = BoundedConnection(f"127.0.0.1:{listener.getsockname()[1]}", 0.5)
        assert link.call(Command(code=1)).code == 0
        began_s = time.monotonic()
        with pytest.raises(CallError):
            link.call(Command(code=1))
        assert time.monotonic() - began_s < 5.0
        with pytest.raises(CallError, match=r"took more than 0\.5 s"):
            link.call(Command(code=1))
        left.set()
        server.join(5)


def serve_text(listener: socket.socket, text: bytes) -> None:
    connection, _ = listener.accept()
    connection.recv(1 << 16)
    connection.sendall(text)
    connection.close()


@pytest.mark.parametrize("text", [b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(4), b"\0\0\0\x08\0\0\0\xff1234"])
def test_an_answer_that_is_no_frame_is_a_call_error(text: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve_text, args=(listener, text), daemon=True)
        server.start()
        link = SyncConnection(f"127.0.0.1:{listener.getsockname()[1]}")
        with contextlib.closing(link), pytest.raises(CallError, match="the answer is no frame"):
            link.call(Command(code=1))
        server.join(5)
