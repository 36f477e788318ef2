"""Report the state of a part to a service manager such as systemd, by its protocol sd_notify.

The service manager passes the path of a datagram socket in the environment. Without it, nothing is reported.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import MutableMapping
from typing import Final

VARIABLE: Final = "NOTIFY_SOCKET"
STATUS_BYTES_MAX: Final = 1000


class ServiceManager:
    """The service manager that started this process, if any. A failed report changes nothing for the part."""

    def __init__(self, path: str | None) -> None:
        """Report to the socket at `path`. A first `@` means Linux's abstract namespace."""
        self._path = path

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> ServiceManager:
        """Take the socket from `environment`, so that child processes do not report in the name of this one."""
        return cls(environment.pop(VARIABLE, None))

    def ready(self, status: str) -> None:
        """Report that the part serves."""
        self._report("READY=1", _status_line(status))

    def status(self, status: str) -> None:
        """Report a text for a person, which `systemctl status` shows."""
        self._report(_status_line(status))

    def stopping(self) -> None:
        """Report that the part has begun to stop."""
        self._report("STOPPING=1", _status_line("stopping"))

    def _report(self, *lines: str) -> None:
        if not self._path:
            return
        address = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)  # a service manager that does not read must not stop the part
            sender.sendto("\n".join(lines).encode(), address)


@functools.cache
def service_manager() -> ServiceManager:
    """Return the service manager of this process. The first call must precede the first child process."""
    return ServiceManager.of(os.environ)


def _status_line(text: str) -> str:
    """Return the line with `text`, which may not have lines of its own."""
    return "STATUS=" + " ".join(text.split())[:STATUS_BYTES_MAX]
