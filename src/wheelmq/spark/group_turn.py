"""The turns of a batch of a query group, in the driver. The failure of one turn affects no other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from threading import Event
from typing import Any, Protocol, TypeVar

from py4j.protocol import Py4JNetworkError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from wheelmq.net.errors import CallError
from wheelmq.spark.group_ranges import leases_of
from wheelmq.spark.member import Turning
from wheelmq.spark.query_group import QueryGroup
from wheelmq.spark.staged_turn import StagedTurn, StageTrial
from wheelmq.spark.upload import UploadLease
from wheelmq.system.failpoint import reach

log = logging.getLogger(__name__)

R = TypeVar("R")


class OnLoop(Protocol):
    """Runs work on the event loop of the groups, and returns its result."""

    def __call__(self, work: Coroutine[Any, Any, R], /) -> R: ...


Uploaded = Callable[[DataFrame, Mapping[int, UploadLease]], DataFrame]
"""Uploads turn rows of a batch under its leases, and returns the summaries."""


class GroupTurn:
    """The function for foreachBatch: it runs the one action of a batch, and requests the commits from its brokers."""

    def __init__(self, group: QueryGroup, on_loop: OnLoop, stopped: Event, *, upload: Uploaded) -> None:
        self._group = group
        self._on_loop = on_loop
        self._stopped = stopped
        self._upload = upload

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Run the turns of one batch. A query's first batch is empty without a plan."""
        batch = self._group.batch
        if batch is None or self._stopped.is_set():
            return
        found = [row.asDict() for row in self._upload(rows, leases_of(batch)).collect()]
        reach("driver.collected")
        self._on_loop(self._group.commit(batch.sequence, found))


class StagedGroupTurn:
    """The function for foreachBatch with a stage: it makes the turns of a batch one after the other.

    The rows are read once, and kept until all turns are made.
    """

    def __init__(
        self,
        group: QueryGroup,
        on_loop: OnLoop,
        stopped: Event,
        *,
        trial_of: Callable[[str], StageTrial],
        upload: Uploaded,
    ) -> None:
        self._group = group
        self._on_loop = on_loop
        self._stopped = stopped
        self._trial_of = trial_of
        self._upload = upload

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Run the turns of one batch. Raises the error of a query that the driver stops."""
        batch = self._group.batch
        if batch is None or self._stopped.is_set():
            return
        leases = leases_of(batch)
        kept = rows.persist()
        try:
            failed = kept.where(F.col("problem").isNotNull()).select("member", "problem").collect()
            problems = {row.member: row.problem for row in failed}
            for number, turning in batch.turns.items():
                self._turn(batch.sequence, kept.where(F.col("member") == number), turning, leases, problems.get(number))
        finally:
            kept.unpersist()
        self._on_loop(_called(lambda: self._group.finish(batch.sequence)))

    def _turn(
        self, sequence: int, rows: DataFrame, turning: Turning, leases: Mapping[int, UploadLease], problem: str | None
    ) -> None:
        try:
            if problem is not None:
                raise CallError(problem)
            staged = StagedTurn(
                _MemberTurn(self._group, sequence, turning, self._on_loop),
                self._trial_of(turning.member.broker),
                lambda shown: self._upload(_of_member(shown, turning.lease.number), leases),
                precision_ms=int(turning.lease.terms["precision_ms"]),
                is_stopped=self._stopped.is_set,
            )
            staged.turn(rows.drop("member", "problem"))
        except Py4JNetworkError:
            raise
        except Exception as error:
            if self._stopped.is_set():
                raise
            failure = error
            self._on_loop(_called(lambda: self._group.note_failure(sequence, turning, failure)))


class _MemberTurn:
    """The requests about the turn of one member of a batch."""

    def __init__(self, group: QueryGroup, sequence: int, turning: Turning, on_loop: OnLoop) -> None:
        self._group = group
        self._sequence = sequence
        self._turning = turning
        self._on_loop = on_loop
        self._is_fresh = True

    def plan(self) -> dict[str, Any] | None:
        """Return the plan; None if the broker does not wait for this turn any more. The first call makes no request."""
        if self._is_fresh:
            self._is_fresh = False
            return self._turning.plan
        is_under_way = self._on_loop(self._turning.member.is_under_way(self._turning, self._group.wait_s))
        return self._turning.plan if is_under_way else None

    def commit(self, summaries: DataFrame, turn: int) -> None:
        """Run the action, and commit the turn. Raises Refused, CallError."""
        found = [row.asDict() for row in summaries.collect()]
        reach("driver.collected")
        self._on_loop(self._group.commit_turn(self._sequence, self._turning, found))


def _of_member(rows: DataFrame, number: int) -> DataFrame:
    """Return turn rows with the columns that the uploads of a group need."""
    return rows.withColumns({"member": F.lit(number).cast("int"), "problem": F.lit(None).cast("string")})


async def _called(function: Callable[[], None]) -> None:
    function()
