"""Keep the query of one group running, in a thread of its own.

The query may hang: a task does not end, or the planner asks for no batch. After a deadline, the thread stops the query
and starts another one. The leases of all members end with a query, so its late tasks are rejected.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession

from wheelmq.spark.broker_turns import (
    POLL_S,
    QUIET_DOUBLINGS_MAX,
    QUIET_FIRST_S,
    QUIET_NEW_S,
    QUIET_S,
    RETRY_S,
    HangingQueries,
    RunningQuery,
)
from wheelmq.spark.group_source import CHANNEL
from wheelmq.spark.group_turn import GroupTurn, OnLoop, StagedGroupTurn
from wheelmq.spark.queries import scratch_checkpoint, start_turns
from wheelmq.spark.query_group import QueryGroup
from wheelmq.spark.staged_turn import StageTrial
from wheelmq.spark.turn import group_decided, group_uploaded
from wheelmq.spark.turn_query import TurnQuery
from wheelmq.spark.upload import UploadLease
from wheelmq.system.tls_client import TlsOptions

log = logging.getLogger(__name__)

_loading: Final = threading.Lock()
"""Held while Spark creates a data source in a Python worker. One worker, with its imports, serves all queries."""


class CallOnLoop(Protocol):
    """Calls a function on the event loop of the groups, and returns its result."""

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any: ...


class GroupQueries:
    """Starts the queries of one group, whose data source is registered as `source`."""

    def __init__(
        self,
        session: SparkSession,
        title: str,
        source: str,
        channel: str,
        group: QueryGroup,
        on_loop: OnLoop,
        *,
        tls: TlsOptions | None,
        trial_of: Callable[[str], StageTrial] | None,
    ) -> None:
        """`trial_of` returns the trial of a broker's stage, or is None for turns without a stage."""
        self._session = session
        self._title = title
        self._source = source
        self._channel = channel
        self._group = group
        self._on_loop = on_loop
        self._tls = tls
        self._trial_of = trial_of

    def start(self) -> TurnQuery:
        stopped = threading.Event()
        with _loading:
            loaded = self._session.readStream.format(self._source).option(CHANNEL, self._channel).load()
        turn_rows = group_decided(loaded)
        checkpoint = scratch_checkpoint()
        turn: GroupTurn | StagedGroupTurn
        if self._trial_of is None:
            turn = GroupTurn(self._group, self._on_loop, stopped, upload=self._uploaded)
        else:
            turn = StagedGroupTurn(self._group, self._on_loop, stopped, trial_of=self._trial_of, upload=self._uploaded)
        return TurnQuery(start_turns(turn_rows, turn, checkpoint, name=self._title), checkpoint, stopped)

    def _uploaded(self, rows: DataFrame, leases: Mapping[int, UploadLease]) -> DataFrame:
        return group_uploaded(rows, leases, self._group.wait_s, self._tls)


class GroupTurns:
    """Keeps a query running once it is wanted. After a `failure`, which ends its thread, the driver must end.

    `call` calls a function on the event loop of the groups, such as `is_wanted`, which returns whether the query may
    start now. `has_turned` returns whether the driver has committed a turn.
    """

    def __init__(
        self,
        title: str,
        group: QueryGroup,
        start_query: Callable[[], RunningQuery],
        call: CallOnLoop,
        *,
        is_wanted: Callable[[], bool],
        has_turned: Callable[[], bool],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failure: BaseException | None = None
        self._title = title
        self._group = group
        self._start_query = start_query
        self._call = call
        self._is_wanted = is_wanted
        self._has_turned = has_turned
        self._now_s = now_s
        self._query: RunningQuery | None = None
        self._next_try_s = 0.0
        self._given_up = 0
        """Queries stopped for their silence since the last committed turn."""
        self._hanging = HangingQueries(title)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=title, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

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

    def step(self) -> None:
        """Start the query if there is none, and check whether it has ended or hangs."""
        now_s = self._now_s()
        if self._query is None:
            if now_s >= self._next_try_s and self._call(self._is_wanted):
                self._call(self._group.note_progress)
                self._query = self._start_query()
        elif not self._query.is_active:
            self._end(self._query, self._query.problem() or "the query ended")
        else:
            quiet_s = self._call(self._group.quiet_s)
            if quiet_s > self._quiet_max_s():
                self._given_up += 1
                self._give_up(self._query, f"its batch made no progress for {quiet_s:.1f} s")

    def _quiet_max_s(self) -> float:
        if self._group.has_turned:
            self._given_up = 0
        least_s = QUIET_S if self._group.has_turned else QUIET_NEW_S if self._has_turned() else QUIET_FIRST_S
        return self._group.wait_s + least_s * (1 << min(self._given_up, QUIET_DOUBLINGS_MAX))

    def _give_up(self, query: RunningQuery, why: str) -> None:
        self._hanging.stop(query)
        self._end(query, why)

    def _end(self, query: RunningQuery, why: str) -> None:
        self._query = None
        self._next_try_s = self._now_s() + RETRY_S
        query.remove_checkpoint()
        log.warning("%s: the query is started again: %s", self._title, why)
        self._call(self._group.fail, why)
