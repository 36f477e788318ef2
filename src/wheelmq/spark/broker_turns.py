"""One broker of the application: its lease, and the query that runs under it, in a thread of its own.

A broker that is down or slow, or whose turn hangs, blocks only its own thread and query.

A turn may hang: a task does not end, or the planner asks for no plan. With each renewal, the broker reports the time
without a request for the lease's turns. After a deadline, the thread stops the query and starts another one under a new
lease. It does so, too, when the broker rejects a renewal or does not answer one for that long.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
from py4j.protocol import Py4JError

from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.system.failpoint import reach

log = logging.getLogger(__name__)

POLL_S: Final = 0.2
RENEW_S: Final = 1.5
RETRY_S: Final = 0.5
QUIET_S: Final = 10.0
"""A turn without a request for this time is stopped. Turns are at least two thirds of a lead (20 s) ahead."""
QUIET_NEW_S: Final = 30.0
"""The same for a query that has not committed a turn yet, because Spark has to plan it."""
QUIET_FIRST_S: Final = 180.0
"""The same for the first query of all, because workers must start, and kernels may have to be compiled."""
QUIET_DOUBLINGS_MAX: Final = 4
"""Maximum number of doublings of the limit: one for each turn stopped in a row, because a machine may be slow."""
LEFT_BEHIND_MAX: Final = 3
"""Maximum number of queries that did not stop. One more requires a new JVM."""

Say = Callable[..., None]


class Link(Protocol):
    """A connection to the broker."""

    def call(self, command: Command) -> Command:
        """Return the answer, with any code. Raises CallError."""
        ...

    def close(self) -> None: ...


class RunningQuery(Protocol):
    @property
    def is_active(self) -> bool: ...

    def problem(self) -> str:
        """Return the problem that ended the query."""
        ...

    def stop(self) -> None:
        """Stop the query. Raises Py4JError when it does not stop."""
        ...

    def remove_checkpoint(self) -> None:
        """Remove the files of a query that ended."""
        ...


StartQuery = Callable[[bytes, Callable[[str], None]], RunningQuery]
"""Starts a query under a lease, given as the broker's answer. The query calls the function after each turn."""


class HangingQueries:
    """Stops queries of `owner` that may hang, and counts those that did not stop."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._left_behind = 0

    def stop(self, query: RunningQuery) -> None:
        """Stop a query with its tasks. Raises RuntimeError after LEFT_BEHIND_MAX that do not stop."""
        try:
            query.stop()
        except Py4JError as problem:
            self._left_behind += 1
            log.warning("a query of %s did not stop: %s", self._owner, problem)
            if self._left_behind > LEFT_BEHIND_MAX:
                raise RuntimeError(f"{self._left_behind} queries of {self._owner} hang and cannot be stopped") from None


class WaitingReport:
    """Reports why a broker gives no lease, once for each reason in a row."""

    def __init__(self, broker: str, say: Say) -> None:
        self._broker = broker
        self._say = say
        self._last = ""

    def report(self, problem: Exception) -> None:
        kind = re.sub(r"\d+", "", str(problem))  # the time since the holder's renewal changes with each rejection
        if kind != self._last:
            self._last = kind
            self._say("waiting", broker=self._broker, why=str(problem))

    def end(self) -> None:
        """Note that the broker gave the lease."""
        self._last = ""


class BrokerTurns:
    """Keeps a query running for one broker. After a `failure`, which ends its thread, the whole driver must end."""

    def __init__(
        self,
        broker: str,
        link: Link,
        start_query: StartQuery,
        say: Say,
        *,
        name: str,
        holder_id: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.broker = broker
        self.has_turned = False
        self.failure: BaseException | None = None
        self.answered_s = now_s()
        """Time of the broker's last answer."""
        self._now_s = now_s
        self._link = link
        self._start_query = start_query
        self._name = name
        self._holder_id = holder_id
        """Secret: a holder with this id may open the lease again before it lapses."""
        self._say = say
        self._query: RunningQuery | None = None
        self._query_has_turned = False
        self._epoch = 0
        self._token = ""
        self._renewed_s = 0.0
        """Time when the lease was last renewed or opened."""
        self._next_try_s = 0.0
        self._next_renewal_s = 0.0
        self._waiting = WaitingReport(broker, say)
        self._given_up = 0
        """Turns stopped for their silence since the last committed turn."""
        self._hanging = HangingQueries(broker)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"turns of {broker}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def join(self, deadline_s: float) -> None:
        self._thread.join(deadline_s)

    def _run(self) -> None:
        try:
            while not self._stopping.wait(POLL_S):
                self.step()
            if self._query is not None:
                self._query.stop()
                self._query.remove_checkpoint()
        except BaseException as error:
            self.failure = error
        finally:
            self._link.close()

    def step(self) -> None:
        """Start the query if there is none, renew the lease, and check whether the query has ended or hangs."""
        now_s = self._now_s()
        if self._query is None:
            if now_s >= self._next_try_s:
                self._start(now_s)
        elif not self._query.is_active:
            self._end(self._query, self._query.problem())
        elif now_s >= self._next_renewal_s:
            self._next_renewal_s = now_s + RENEW_S
            self._renew(self._query, now_s)

    def _start(self, now_s: float) -> None:
        try:
            answer = self._ask(RequestCode.WMQ_PIPELINE_OPEN, name=self._name, holderId=self._holder_id)
        except (CallError, Refused) as problem:
            self._next_try_s = now_s + RETRY_S
            self._waiting.report(problem)
            return
        self._waiting.end()
        terms: dict[str, Any] = msgspec.json.decode(answer.body)
        self._epoch, self._token = int(terms["epoch"]), str(terms["token"])
        self._renewed_s = now_s
        reach("driver.opened")
        self._query_has_turned = False
        self._query = self._start_query(bytes(answer.body), self._note_turn)
        self._say("turning", broker=self.broker, epoch=self._epoch)

    def _renew(self, query: RunningQuery, now_s: float) -> None:
        """Renew the lease. Stop the query when the lease is over, or when its turns are silent for too long."""
        try:
            answer = self._ask(RequestCode.WMQ_PIPELINE_RENEW, epoch=self._epoch, token=self._token)
        except Refused as problem:
            self._give_up(query, str(problem))
            return
        except CallError as problem:
            log.info("the renewal of the lease failed: %s", problem)
            quiet_s = now_s - self._renewed_s
        else:
            self._renewed_s = now_s
            quiet_s = int(answer.ext.get("quietMs", "0")) / 1000.0
        if quiet_s > self._quiet_max_s():
            self._given_up += 1
            self._give_up(query, f"its turn made no progress for {quiet_s:.1f} s")

    def _quiet_max_s(self) -> float:
        least_s = QUIET_S if self._query_has_turned else QUIET_NEW_S if self.has_turned else QUIET_FIRST_S
        return least_s * (1 << min(self._given_up, QUIET_DOUBLINGS_MAX))

    def _give_up(self, query: RunningQuery, why: str) -> None:
        self._hanging.stop(query)
        self._end(query, f"stopped: {why}")

    def _end(self, query: RunningQuery, why: str) -> None:
        self._query = None
        query.remove_checkpoint()
        self._say("query ended", broker=self.broker, epoch=self._epoch, why=why)

    def _note_turn(self, text: str) -> None:
        self.has_turned = self._query_has_turned = True
        self._given_up = 0
        log.info("%s: %s", self.broker, text)

    def _ask(self, code: RequestCode, **fields: object) -> Command:
        answer = self._link.call(Command(code=code, ext=headers.texts(**fields)))
        self.answered_s = self._now_s()
        if answer.code:
            raise Refused(answer)
        return answer
