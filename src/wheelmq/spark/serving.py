"""The brokers that the application serves: those of the command line, and those that a name server knows now.

A broker that has left the name server is served until it does not answer either: a restarted one knows no broker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.sync_connection import SyncConnection
from wheelmq.spark.broker_turns import BrokerTurns
from wheelmq.system.tls_client import ClientTls

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
ASK_TIMEOUT_S: Final = 2.0
GONE_S: Final = 10.0
"""A broker that is not registered and does not answer for this time has left."""
JOIN_S: Final = 20.0


class Serving:
    """The brokers that are served. `begin` starts to serve a broker, and `say` reports each change.

    `sign` signs the requests to name servers.
    """

    def __init__(
        self,
        brokers: Sequence[str],
        namesrv: Sequence[str],
        begin: Callable[[str], BrokerTurns],
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
        self.turns: dict[str, BrokerTurns] = {}

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
        for broker in (*self._named, *sorted(registered or ())):
            if broker not in self.turns:
                self.turns[broker] = self._begin(broker)
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
