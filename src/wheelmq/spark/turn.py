"""One turn, in the driver: DataFrame operations decide slot and fire time, tasks upload rows, the broker commits.

The operations are the twin of `delay.timer.staging.decide`, and a test proves that the two are equal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from wheelmq.formats.disk.timer import MAGIC_ROLL
from wheelmq.formats.disk.turn_row import INDEX
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import Refused
from wheelmq.net.sync_connection import SyncConnection
from wheelmq.spark.queries import map_in_arrow
from wheelmq.spark.upload import GROUP_SUMMARY, SUMMARY, UploadLease, group_uploader, uploader
from wheelmq.system.failpoint import reach
from wheelmq.system.tls_client import TlsOptions, client_tls

log = logging.getLogger(__name__)


def decide(rows: DataFrame, roll_window_ms: int | Column, precision_ms: int | Column, *more: str) -> DataFrame:
    """Compute slot, roll and fire time of each staged row, as turn rows (RocketMQ: TimerMessageStore.doEnqueue).

    The turn rows also have the columns `more` of the staged rows.
    """
    third_ms = _part_of(roll_window_ms, precision_ms, 3)
    half_ms = _part_of(roll_window_ms, precision_ms, 2)
    beyond = F.col("out_ms") - F.col("write_ms") - roll_window_ms
    rolls = (F.col("kind") == INDEX) & (beyond >= 0)
    rolled_slot = F.col("write_ms") + F.when(beyond < third_ms, half_ms).otherwise(roll_window_ms)
    placed = rows.withColumns(
        {
            "slot_ms": F.when(rolls, rolled_slot).otherwise(F.col("out_ms")),
            "magic": F.when(rolls, F.col("magic").bitwiseOR(MAGIC_ROLL)).otherwise(F.col("magic")),
        }
    )
    rolling = F.col("magic").bitwiseAND(MAGIC_ROLL) != 0
    return placed.select(
        "kind",
        "turn",
        F.when(rolling, F.col("slot_ms") + 1).otherwise(F.col("due_ms")).alias("fire_ms"),
        "origin",
        "slot_ms",
        "position",
        "size",
        "topic_hash",
        "magic",
        (F.col("due_ms") - F.col("store_ms")).alias("delay_ms"),
        F.lit(0).cast("long").alias("shift_ms"),
        *more,
    )


def _part_of(window_ms: int | Column, precision_ms: int | Column, divisor: int) -> int | Column:
    """Return a fraction of the roll window in whole slots."""
    if isinstance(window_ms, int) and isinstance(precision_ms, int):
        return window_ms // precision_ms // divisor * precision_ms
    slots = F.floor(F.floor(F.lit(window_ms) / precision_ms) / divisor)
    return slots * precision_ms


def group_decided(rows: DataFrame) -> DataFrame:
    """Return the turn rows of a query group, each by the roll window and the precision of its own broker.

    They have two columns more: `member` and `problem`.
    """
    return decide(rows, F.col("window_ms"), F.col("precision_ms"), "member", "problem")


def group_uploaded(
    turn_rows: DataFrame, leases: Mapping[int, UploadLease], wait_s: float, tls: TlsOptions | None
) -> DataFrame:
    """Upload turn rows of a batch of a query group in tasks. Returns one summary row for each upload."""
    return map_in_arrow(turn_rows, group_uploader(leases, wait_s, tls), GROUP_SUMMARY)


def decided(rows: DataFrame, terms: dict[str, Any]) -> DataFrame:
    """Return the turn rows for the staged rows of a lease with `terms`."""
    precision_ms = int(terms["precision_ms"])
    return decide(rows, int(terms["roll_window_slots"]) * precision_ms, precision_ms)


def uploaded(turn_rows: DataFrame, broker: str, terms: dict[str, Any], tls: TlsOptions | None = None) -> DataFrame:
    """Upload turn rows in tasks. Returns one summary row for each upload."""
    return map_in_arrow(turn_rows, uploader(broker, int(terms["epoch"]), str(terms["token"]), tls), SUMMARY)


class Turn:
    """The function for foreachBatch. It runs the one action of the turn, and requests the commit from the broker."""

    def __init__(
        self, broker: str, epoch: int, token: str, on_committed: Callable[[str], None], tls: TlsOptions | None = None
    ) -> None:
        self._link = SyncConnection(broker, tls=client_tls(tls))
        self._epoch, self._token = epoch, token
        self._on_uploaded = on_committed

    def __call__(self, summaries: DataFrame, batch_id: int) -> None:
        """Run one turn. Raises the error that ends the query: Refused when the broker rejects the lease."""
        winners = summaries.collect()
        reach("driver.collected")
        if winners:  # a query's first batch is empty without a plan; a plan is never empty
            self._request_commit(winners, winners[0].turn)

    def plan(self) -> dict[str, Any] | None:
        """Return the plan of the turn that the broker waits for; None without one. Raises Refused, CallError."""
        ext = headers.texts(epoch=self._epoch, timeoutMs=0, token=self._token)
        answer = self._link.call(Command(code=RequestCode.WMQ_PIPELINE_PLAN, ext=ext))
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer)
        plan: dict[str, Any] = msgspec.json.decode(answer.body)
        return plan

    def commit(self, summaries: DataFrame, turn: int) -> None:
        """Run the action, and commit the plan of `turn`, also if no row was uploaded. Raises Refused, CallError."""
        winners = summaries.collect()
        reach("driver.collected")
        self._request_commit(winners, turn)

    def _request_commit(self, winners: list[Row], turn: int) -> None:
        assert all(winner.turn == turn for winner in winners)
        body = msgspec.json.encode([winner.asDict() for winner in winners])
        ext = headers.texts(epoch=self._epoch, turn=turn, token=self._token)
        self._link.ask(Command(code=RequestCode.WMQ_PIPELINE_COMMIT, ext=ext, body=body))
        reach("driver.committed")
        self._on_uploaded(f"turn {turn}: {sum(winner.rows for winner in winners)} rows in {len(winners)} parts")
