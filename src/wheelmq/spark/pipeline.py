"""Run the pipeline in a Spark session: `run(spark, namesrv=["10.0.0.1:9876"])`.

The session may come from `spark-submit`, a notebook or a cluster. `run` starts and ends queries of the session. It
starts no JVM, changes no setting, and leaves the session open. `wheelmq pipeline` calls it in a session of its own.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.net.sync_connection import SyncConnection
from wheelmq.spark.broker_turns import POLL_S, BrokerTurns, Say
from wheelmq.spark.groups import QueryGroups
from wheelmq.spark.serving import JOIN_S, Served, Serving
from wheelmq.spark.source import timer_source
from wheelmq.spark.staged_turn import StageTrial
from wheelmq.spark.stages import Stage
from wheelmq.spark.turn_query import TurnQueries
from wheelmq.system.tls_client import TlsOptions, client_tls

log = logging.getLogger(__name__)

GROUPS: Final = 8
"""Usual number of query groups."""

_numbers: Final = itertools.count()
"""The numbers of sources. No two brokers of a process share a source, whatever session they use."""


END_S: Final = 3.0
"""Time for which brokers that join groups wait for the ends of their own queries. One of these may hang."""


def log_event(event: str, **fields: object) -> None:
    log.info("%s %s", event, fields)


def run(
    spark: SparkSession,
    *,
    brokers: Sequence[str] = (),
    namesrv: Sequence[str] = (),
    stop: threading.Event | None = None,
    name: str | None = None,
    holder_id: str | None = None,
    access_key: AccessKey | None = None,
    tls: TlsOptions | None = None,
    over_the_wire: bool = False,
    stage: Stage | None = None,
    groups: int = GROUPS,
    on_event: Say = log_event,
    on_first_turn: Callable[[], None] | None = None,
) -> None:
    """Run turns for brokers until `stop` is set, then stop the queries. The session stays open.

    The brokers are those of `brokers`, and all that the name servers of `namesrv` list, each as HOST:PORT. Without
    `stop`, it runs until an exception such as KeyboardInterrupt.

    - `stage` may deliver timers later (`spark/stages.py`).
    - `groups` limits the queries. Up to this number of brokers, each broker has a query of its own. More brokers share
      this number of queries, and those that are slow share one more (`spark/groups.py`).
    - `on_event` gets the name and the fields of each event, such as a new lease.
    - `on_first_turn` is called after the first committed turn.
    - `over_the_wire` lets tasks read from the brokers, even if they can read the store.
    - `name` and `holder_id` name the holder of the leases. By default they are generated.

    Raises ValueError without an address or a group, or for a session of Spark Connect. Raises the error that ended the
    thread of a broker or of a group, for example when the JVM is gone.
    """
    _check(spark, brokers, namesrv, groups)
    sign = None if access_key is None else access_key.sign
    application = _Application(
        spark,
        on_event,
        name=name or f"{socket.gethostname()}-{os.getpid()}",
        holder_id=holder_id or secrets.token_hex(16),
        over_the_wire=over_the_wire,
        stage=stage,
        groups=groups,
        queries=groups if namesrv else min(groups, len(brokers)),
        tls=tls,
        sign=sign,
    )
    serving = Serving(brokers, namesrv, application.begin, on_event, client_tls(tls), sign)
    ended = stop or threading.Event()
    is_first = on_first_turn is not None
    try:
        while not ended.wait(POLL_S):
            serving.step()
            if is_first and on_first_turn is not None and any(one.has_turned for one in serving.turns.values()):
                is_first = False
                on_first_turn()
    finally:
        serving.stop()
        application.stop()


def _check(spark: SparkSession, brokers: Sequence[str], namesrv: Sequence[str], groups: int) -> None:
    """Check the arguments of `run`. Raises ValueError."""
    if isinstance(brokers, str) or isinstance(namesrv, str):
        raise ValueError("brokers and namesrv are lists of addresses, as in namesrv=['127.0.0.1:9876']")
    if not brokers and not namesrv:
        raise ValueError("no server is given: give brokers or namesrv, as in namesrv=['127.0.0.1:9876']")
    if groups < 1:
        raise ValueError(f"groups={groups} is too small: brokers share at least one query")
    try:
        spark.sparkContext  # noqa: B018
    except PySparkAttributeError:
        raise ValueError("a session of Spark Connect cannot run turns: create one without remote()") from None


class _Application:
    """Begins to serve brokers by queries of one session."""

    def __init__(
        self,
        session: SparkSession,
        say: Say,
        *,
        name: str,
        holder_id: str,
        over_the_wire: bool,
        stage: Stage | None,
        groups: int,
        queries: int,
        tls: TlsOptions | None,
        sign: Callable[[Command], None] | None,
    ) -> None:
        """Create the object. `queries` is the maximum number of queries, each of one broker, that share the session."""
        self._session = session
        self._say = say
        self._name = name
        self._holder_id = holder_id
        self._over_the_wire = over_the_wire
        self._stage = stage
        self._groups_max = groups
        self._queries_max = queries
        self._tls = tls
        self._sign = sign
        self._trials: dict[str, StageTrial] = {}
        self._alone: dict[str, BrokerTurns] = {}
        """The brokers that have queries of their own."""
        self._ending: list[BrokerTurns] = []
        """The threads of their last queries. They may still stop these while groups serve the brokers."""
        self._groups: QueryGroups | None = None

    def begin(self, brokers: Sequence[str]) -> Mapping[str, Served]:
        """Begin to serve brokers: each by a query of its own, or all in groups once there are too many.

        The brokers that were alone join the groups, too. From then on the groups remain until the end.
        """
        self._alone = {broker: turns for broker, turns in self._alone.items() if not turns.is_stopping}
        if self._groups is None and len(self._alone) + len(brokers) <= self._groups_max:
            for broker in brokers:
                self._alone[broker] = self._begin_alone(broker)
            return {broker: self._alone[broker] for broker in brokers}
        if self._groups is None:
            self._groups = self._begin_groups()
        joining = [*self._end_alone(), *brokers]
        return self._groups.add(joining)

    def stop(self) -> None:
        """Stop the groups. Returns when all queries have ended, or after JOIN_S."""
        ends_s = time.monotonic() + JOIN_S
        if self._groups is not None:
            self._groups.stop(JOIN_S)
        _join(self._ending, ends_s)

    def _begin_alone(self, broker: str) -> BrokerTurns:
        """Begin a query for one broker."""
        source = timer_source(next(_numbers))
        self._session.dataSource.register(source)
        queries = TurnQueries(
            self._session,
            broker,
            source.name(),
            over_the_wire=self._over_the_wire,
            tls=self._tls,
            trial=None if self._stage is None else self._trial_of(broker),
            queries=self._queries_max,
        )
        turns = BrokerTurns(
            broker,
            SyncConnection(broker, tls=client_tls(self._tls), sign=self._sign),
            queries.start,
            self._say,
            name=self._name,
            holder_id=self._holder_id,
        )
        turns.start()
        return turns

    def _end_alone(self) -> list[str]:
        """End the queries of the brokers that are alone, and return these brokers. It waits for END_S at most.

        A group opens the lease of a query that has not ended by then. The late requests of that query are STALE.
        """
        ended, self._alone = self._alone, {}
        self._ending += ended.values()
        for turns in ended.values():
            turns.stop()
        _join(ended.values(), time.monotonic() + END_S)
        return list(ended)

    def _begin_groups(self) -> QueryGroups:
        self._say("groups", count=self._groups_max)
        return QueryGroups(
            self._session,
            self._say,
            self._groups_max,
            name=self._name,
            holder_id=self._holder_id,
            over_the_wire=self._over_the_wire,
            tls=self._tls,
            sign=self._sign,
            trial_of=None if self._stage is None else self._trial_of,
            number=lambda: next(_numbers),
        )

    def _trial_of(self, broker: str) -> StageTrial:
        """Return the trial of the stage for a broker. It outlives the queries of the broker."""
        assert self._stage is not None
        if broker not in self._trials:
            self._trials[broker] = StageTrial(self._stage, broker, self._say)
        return self._trials[broker]


def _join(ending: Iterable[BrokerTurns], ends_s: float) -> None:
    """Wait until the threads have ended, or until the time `ends_s`."""
    for turns in ending:
        turns.join(max(0.0, ends_s - time.monotonic()))
