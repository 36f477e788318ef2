"""Ports of this machine: find a free one, or the process that has a taken one."""

from __future__ import annotations

import os
import socket
from typing import Final

from wheelmq.config.bounds import FAST_PORT_BELOW

HOST: Final = "127.0.0.1"
FIRST: Final = 15_000
COUNT: Final = 15_000
"""Number of ports in the search for a free one, below the kernel's range for outgoing connections.

So no connection can take the port of a server that restarts.
"""
APART: Final = 4
"""Distance of the ports in the search.

A broker also listens on its fast port, FAST_PORT_BELOW below its own. The distance keeps it off the port that another
server has chosen and does not listen on yet.
"""

OTHER_USER: Final = "a process of another user"


def is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


def free_port(*, but: tuple[int, ...] = ()) -> int:
    """Return a port that is free now, with its fast port, and off the servers on the ports `but`. Raises OSError."""
    used = {*but, *(port - FAST_PORT_BELOW for port in but)}
    for i in range(COUNT // APART):
        port = FIRST + (os.getpid() * 37 + i) * APART % COUNT
        pair = (port, port - FAST_PORT_BELOW)
        if used.isdisjoint(pair) and all(is_free(one) for one in pair):
            return port
    raise OSError(f"found no port from {FIRST} to {FIRST + COUNT - 1} that is free and has its fast port free as well")


def holder(port: int) -> str | None:
    """Return a text with the process that listens on `port`; None if it cannot be seen."""
    import psutil

    try:
        found = [
            connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        ]
    except psutil.AccessDenied:
        return None
    for pid in filter(None, found):
        return process_text(pid)
    return OTHER_USER if found else None


def process_text(pid: int) -> str:
    import psutil

    try:
        return f"process {pid} ({_command(psutil.Process(pid).cmdline())})"
    except psutil.Error:
        return f"process {pid}"


def _command(words: list[str]) -> str:
    text = " ".join(word.rsplit("/", 1)[-1] if i == 0 else word for i, word in enumerate(words))
    return text if len(text) <= 80 else text[:77] + "..."


def taken_text(port: int, option: str) -> str:
    who = holder(port)
    return f"port {port} is taken{f' by {who}' if who else ''}: end that, or choose another port with {option}"
