"""A proxy for the HA port of a master, whose connections can be cut at any moment."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Final

READ_BYTES: Final = 1 << 14
CONNECT_S: Final = 5.0


class CuttableLink:
    """Listens on a port of its own, and forwards each connection to `target`."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """Break all connections. New ones are let through. Returns the number of broken connections."""
        with self._lock:
            broken, self._open = self._open, set()
        for end in broken:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        return len(broken) // 2

    def close(self) -> None:
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with contextlib.suppress(OSError), near, socket.create_connection(self._target, CONNECT_S) as far:
            far.settimeout(None)
            with self._lock:
                self._open |= {near, far}
            back = threading.Thread(target=self._forward, args=(far, near), daemon=True)
            back.start()
            self._forward(near, far)
            back.join()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        """Forward bytes until one end closes. Both connections end then."""
        with contextlib.suppress(OSError):
            while data := source.recv(READ_BYTES):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
