"""The brokers that the application serves: those of the command line, and those that a name server knows now.

A broker that has left the name server is served until it does not answer either: a restarted one knows no broker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.sync_connection import SyncConnection
from wheelmq.system.tls_client import ClientTls

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
ASK_TIMEOUT_S: Final = 2.0
GONE_S: Final = 10.0
"""A broker that is not registered and does not answer for this time has left."""
JOIN_S: Final = 20.0


class Served(Protocol):
    """A broker that is served, by a query of its own or by one of a group."""

    @property
    def has_turned(self) -> bool: ...

    @property
    def failure(self) -> BaseException | None:
        """The error after which the whole driver must end."""
        ...

    @property
    def answered_s(self) -> float:
        """Time of the broker's last answer."""
        ...

    def stop(self) -> None: ...

    def join(self, deadline_s: float) -> None: ...


Begin = Callable[[Sequence[str]], Mapping[str, Served]]
"""Starts to serve more brokers. Returns them, and brokers that are served in another way from now on."""


class Serving:
    """The brokers that are served. `begin` starts to serve brokers, and `say` reports each change.

    `sign` signs the requests to name servers.
    """

    def __init__(
        self,
        brokers: Sequence[str],
        namesrv: Sequence[str],
        begin: Begin,
        say: Callable[..., None],
        tls: ClientTls | None = None,
        sign: Callable[[Command], None] | None = None,
    ) -> None:
        self._named = tuple(dict.fromkeys(brokers))
        self._links = [SyncConnection(address, ASK_TIMEOUT_S, tls, sign) for address in namesrv]
        self._begin = begin
        self._say = say
        self._next_look_s = 0.0
        self._last_problem = ""
        self.turns: dict[str, Served] = {}

    def step(self) -> None:
        """Begin with new brokers, and stop those that have left. Raises the error that ended a broker's thread."""
        for one in self.turns.values():
            if one.failure is not None:
                raise one.failure
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_S
        registered = self._registered()
        before = set(self.turns)
        wanted = dict.fromkeys((*self._named, *sorted(registered or ())))
        added = [broker for broker in wanted if broker not in self.turns]
        if added:
            self.turns.update(self._begin(added))
        for broker in before - set(self._named) - (before if registered is None else registered):
            if now_s - self.turns[broker].answered_s > GONE_S:
                self.turns.pop(broker).stop()
        if set(self.turns) != before:
            self._say("serving", brokers=sorted(self.turns))

    def stop(self) -> None:
        """Stop all queries. Returns when they have ended, or after JOIN_S."""
        for one in self.turns.values():
            one.stop()
        deadline_s = time.monotonic() + JOIN_S
        for one in self.turns.values():
            one.join(max(0.0, deadline_s - time.monotonic()))
        for link in self._links:
            link.close()

    def _registered(self) -> set[str] | None:
        """Return the addresses of the registered masters; None when no name server answers."""
        problem = ""
        for link in self._links:
            try:
                answer = link.ask(Command(code=RequestCode.GET_BROKER_CLUSTER_INFO))
                table = bodies.read(answer.body, bodies.ClusterInfo).broker_addr_table
            except (CallError, Refused, bodies.BodyError) as error:
                problem = str(error)
                continue
            self._report("")
            return set(bodies.masters(table.values()).values())
        self._report(problem)
        return None

    def _report(self, problem: str) -> None:
        if bool(problem) != bool(self._last_problem):
            if problem:
                log.warning("no name server returns the list of brokers: %s", problem)
            self._say("name servers", why=problem or None)
        self._last_problem = problem
