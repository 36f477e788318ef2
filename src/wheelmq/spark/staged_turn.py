"""A turn with a stage of the user between decision and upload.

The broker checks the result as that of any turn, and the shifts in addition. After a failure, the same turn is made
without the stage. So a stage can only deliver a message later, within the bound.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from wheelmq.formats.disk.timer import MAGIC_DEFAULT
from wheelmq.formats.disk.turn_row import INDEX, WALK
from wheelmq.spark.broker_turns import Say
from wheelmq.spark.stages import Stage, stage_of_broker

log = logging.getLogger(__name__)

FAILURES_MAX: Final = 2
"""Failures in a row after which a stage is not used any more."""


class StageFailed(Exception):
    """The stage returned something other than the rows that it got."""


class StageTrial:
    """The stage of one broker, and whether it is still used. It outlives the broker's queries."""

    def __init__(self, stage: Stage, broker: str, say: Say) -> None:
        self._stage = stage_of_broker(stage, broker)
        self._broker = broker
        self._say = say
        self._failures = 0
        self._is_running = False

    @property
    def is_used(self) -> bool:
        return self._failures < FAILURES_MAX

    def begin(self) -> bool:
        """Begin a staged turn, and return whether the stage is used. A turn that never ended counts as a failure."""
        if self._is_running:
            self.note_failure(StageFailed("its turn did not end, and the driver stopped the query"))
        self._is_running = self.is_used
        return self._is_running

    def apply(self, rows: DataFrame) -> DataFrame:
        """Return the rows of the stage, with the columns of `rows`. Raises StageFailed, and the stage's errors."""
        staged: Any = self._stage(rows)
        if not isinstance(staged, DataFrame):
            raise StageFailed(f"it returned a {type(staged).__name__}, not a DataFrame")
        types = dict(staged.dtypes)
        for name, kind in rows.dtypes:
            if types.get(name) != kind:
                found = f"has the type {types[name]}" if name in types else "is missing"
                raise StageFailed(f"the column {name} {found}: a stage returns it as {kind}")
        return staged.select(*rows.columns)

    def note_success(self) -> None:
        self._is_running = False
        self._failures = 0

    def note_other_failure(self) -> None:
        """Note that the turn failed, but not because of the stage."""
        self._is_running = False

    def note_failure(self, error: Exception) -> None:
        self._is_running = False
        self._failures += 1
        why = f"{type(error).__name__}: {error}".strip()[:500]
        self._say("stage failed", broker=self._broker, why=why, is_used=self.is_used)
        if self.is_used:
            log.warning("%s: the stage failed, and this turn is made without it: %s", self._broker, why)
        else:
            log.critical(
                "ALARM: %s: the stage failed %d times in a row. Turns are made without it until the pipeline starts "
                "again: %s",
                self._broker,
                FAILURES_MAX,
                why,
            )


class TurnRequests(Protocol):
    """The requests about one turn of a broker (`turn.Turn`)."""

    def plan(self) -> dict[str, Any] | None: ...

    def commit(self, summaries: DataFrame, turn: int) -> None: ...


class StagedTurn:
    """The function for foreachBatch with a stage. `upload` uploads rows, and returns their summaries.

    `is_stopped` returns whether the driver stops the query.
    """

    def __init__(
        self,
        turn: TurnRequests,
        trial: StageTrial,
        upload: Callable[[DataFrame], DataFrame],
        *,
        precision_ms: int,
        is_stopped: Callable[[], bool],
    ) -> None:
        self._turn = turn
        self._trial = trial
        self._upload = upload
        self._precision_ms = precision_ms
        self._is_stopped = is_stopped

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Make one turn over the turn rows of a micro-batch. Raises the error that ends the query."""
        if batch_id == 0 and rows.isEmpty():
            return  # a query's first batch is empty without a plan, and a request would get that of the next batch
        self.turn(rows)

    def turn(self, rows: DataFrame) -> None:
        """Make the turn that the broker waits for. Raises the error that ends the query."""
        plan = self._turn.plan()
        if plan is None:
            return  # the turn is committed already
        if not self._trial.begin() or not self._is_made(rows, plan):
            self._turn.commit(self._upload(rows), plan["turn"])

    def _is_made(self, rows: DataFrame, plan: dict[str, Any]) -> bool:
        """Make the turn with the stage. Returns False when the stage failed.

        Raises the errors of lease and broker, and any error of a query that the driver stops. If it stops the query
        because the stage hangs, the next turn counts the failure.
        """
        try:
            is_shown = _is_armed_by(plan, self._precision_ms)
            staged = self._trial.apply(rows.where(is_shown)).unionByName(rows.where(~is_shown))
            self._turn.commit(self._upload(staged.repartition(1)), plan["turn"])
        except Exception as error:
            if not self._is_under_way(plan):
                self._trial.note_other_failure()
                raise
            if self._is_stopped():
                raise
            self._trial.note_failure(error)
            return False
        self._trial.note_success()
        return True

    def _is_under_way(self, plan: dict[str, Any]) -> bool:
        """Return whether the broker answers, and still waits for this turn: then the lease did not cause the error."""
        try:
            return self._turn.plan() == plan
        except Exception as error:
            log.info("no answer about the turn that failed: %s", error)
            return False


def _is_armed_by(plan: dict[str, Any], precision_ms: int) -> Column:
    """Return the condition that a turn arms a timer for its delivery: no roll, no cancel, no later slot."""
    kind, through_ms = F.col("kind"), int(plan["walk_through_ms"]) + precision_ms
    is_near = (kind == WALK) | ((kind == INDEX) & (F.col("fire_ms") <= through_ms))
    return is_near & (F.col("magic") == MAGIC_DEFAULT)
