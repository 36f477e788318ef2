"""The blocking connection, and a server that closes it."""

from __future__ import annotations

import socket
import threading

from wheelmq.formats.wire import frame
from wheelmq.formats.wire.frame import FLAG_RESPONSE, Command
from wheelmq.net.sync_connection import SyncConnection


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
