"""A blocking connection to a server, for code without an event loop: Spark's driver, its tasks, small tools."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final

from wheelmq.formats.wire import frame
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command, FrameError
from wheelmq.net.errors import CallError, Refused
from wheelmq.system.clock import SystemClock
from wheelmq.system.tls_client import ClientTls, problem_text

_now_s: Final = SystemClock.monotonic
_LENGTH_BYTES: Final = 4
TIMEOUT_S_MIN: Final = 0.001
"""The least timeout of a socket: 0 would mean that it does not block."""


class SyncConnection:
    """One connection, opened at the first call and again after a loss. Only one thread may use it at a time.

    `tls` encrypts it. `sign` completes each request before it is sent.
    """

    def __init__(
        self,
        address: str,
        timeout_s: float = 5.0,
        tls: ClientTls | None = None,
        sign: Callable[[Command], None] | None = None,
    ) -> None:
        self.address = address
        self._sign = sign
        self.timeout_s = timeout_s
        self._tls = tls
        self._socket: socket.socket | None = None
        self._opaque = 0
        self._pending: set[int] = set()
        """The requests of `begin` that have no answer yet, by their numbers."""
        self._early: dict[int, Command] = {}
        """Answers that came before those that `finish` waited for."""

    def call(self, command: Command) -> Command:
        """Send a request and return its answer, with any code. Raises CallError."""
        return self.finish(self.begin(command))

    def begin(self, command: Command) -> int:
        """Send a request without waiting for its answer. Returns its number for `finish`. Raises CallError."""
        try:
            connection = self._socket if self._pending and self._socket is not None else self._connect()
            self._opaque = (self._opaque + 1) & 0x7FFF_FFFF
            command.opaque = self._opaque
            if self._sign is not None:
                self._sign(command)
            connection.sendall(frame.encode(command))
        except OSError as error:
            raise self._failed(error) from None
        self._pending.add(command.opaque)
        return command.opaque

    def finish(self, number: int) -> Command:
        """Return the answer to a request of `begin`. Raises CallError, also if the connection was lost since then."""
        try:
            while number in self._pending:
                assert self._socket is not None
                answer = self._read(self._socket)
                if answer.is_response and answer.opaque in self._pending:
                    self._pending.remove(answer.opaque)
                    self._early[answer.opaque] = answer
        except OSError as error:
            raise self._failed(error) from None
        if number not in self._early:
            raise CallError(f"{self.address}: the connection was lost before the answer")
        return self._early.pop(number)

    def ask(self, command: Command) -> Command:
        """Call the server as `call` does. Raises Refused if the answer's code is not SUCCESS."""
        answer = self.call(command)
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer)
        return answer

    def close(self) -> None:
        self._pending.clear()
        self._early.clear()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def _failed(self, error: OSError) -> CallError:
        self.close()
        return CallError(f"{self.address}: {problem_text(error)}")

    def _connect(self) -> socket.socket:
        if self._socket is not None and self._was_closed(self._socket):
            self.close()
        if self._socket is None:
            self._socket = self._dial()
        return self._socket

    def _dial(self) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        host = host.strip("[]")
        context = None if self._tls is None else self._tls.context()
        plain = socket.create_connection((host, int(port)), self.timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None or context is None:
                return plain
            return context.wrap_socket(plain, server_hostname=self._tls.server_name(host))
        except BaseException:
            plain.close()
            raise

    def _was_closed(self, connection: socket.socket) -> bool:
        """Return whether the server has closed this idle connection. No request may be pending on it."""
        connection.settimeout(0)
        try:
            if isinstance(connection, ssl.SSLSocket):
                connection.recv(1)  # it handles messages of TLS itself, and any other byte answers no request
                return True
            return connection.recv(1, socket.MSG_PEEK) == b""
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        finally:
            connection.settimeout(self.timeout_s)

    def _read(self, connection: socket.socket) -> Command:
        head = self._exactly(connection, bytearray(_LENGTH_BYTES), 0)
        try:
            data = head + bytes(frame.frame_bytes(head, 0))
            return frame.decode(self._exactly(connection, data, len(head)), 0, len(data))
        except FrameError as error:
            raise ConnectionAbortedError(f"the answer is no frame: {error}") from None

    def _exactly(self, connection: socket.socket, buffer: bytearray, filled: int) -> bytearray:
        """Fill `buffer`, whose first `filled` bytes have come. Returns it."""
        with memoryview(buffer) as view:
            while filled < len(buffer):
                count = self._receive(connection, view[filled:])
                if not count:
                    raise ConnectionResetError("the connection was closed")
                filled += count
        return buffer

    def _receive(self, connection: socket.socket, room: memoryview) -> int:
        return connection.recv_into(room)


class BoundedConnection(SyncConnection):
    """A connection whose calls wait for at most `wait_s` in total. After that, each call raises CallError."""

    def __init__(self, address: str, wait_s: float, tls: ClientTls | None = None) -> None:
        super().__init__(address, wait_s, tls)
        self._wait_s = wait_s
        self._deadline_s = 0.0

    def call(self, command: Command) -> Command:
        """Send a request and return its answer, with any code. Raises CallError."""
        began_s = _now_s()
        self._deadline_s = began_s + self.timeout_s
        try:
            if self.timeout_s <= 0:
                raise CallError(f"{self.address} took more than {self._wait_s:g} s to answer")
            return super().call(command)
        finally:
            self.timeout_s -= _now_s() - began_s

    def _receive(self, connection: socket.socket, room: memoryview) -> int:
        connection.settimeout(max(TIMEOUT_S_MIN, self._deadline_s - _now_s()))
        return super()._receive(connection, room)
