"""One turn, in the driver: DataFrame operations decide slot and fire time, tasks upload rows, the broker commits.

The operations are the twin of `delay.timer.staging.decide`, and a test proves that the two are equal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from wheelmq.formats.disk.timer import MAGIC_ROLL
from wheelmq.formats.disk.turn_row import INDEX
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.sync_connection import SyncConnection
from wheelmq.spark.queries import map_in_arrow
from wheelmq.spark.upload import SUMMARY, uploader
from wheelmq.system.failpoint import reach
from wheelmq.system.tls_client import TlsOptions, client_tls

log = logging.getLogger(__name__)


def decide(rows: DataFrame, roll_window_ms: int, precision_ms: int) -> DataFrame:
    """Compute slot, roll and fire time of each staged row, as turn rows (RocketMQ: TimerMessageStore.doEnqueue)."""
    third_ms = roll_window_ms // precision_ms // 3 * precision_ms
    half_ms = roll_window_ms // precision_ms // 2 * precision_ms
    beyond = F.col("out_ms") - F.col("write_ms") - F.lit(roll_window_ms)
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
    )


def uploaded(rows: DataFrame, broker: str, terms: dict[str, Any], tls: TlsOptions | None = None) -> DataFrame:
    precision_ms = int(terms["precision_ms"])
    turn_rows = decide(rows, int(terms["roll_window_slots"]) * precision_ms, precision_ms)
    upload = uploader(broker, int(terms["epoch"]), str(terms["token"]), tls)
    return map_in_arrow(turn_rows, upload, SUMMARY)


class Turn:
    """The function for foreachBatch. It runs the one action of the turn, and requests the commit from the broker."""

    def __init__(
        self, broker: str, epoch: int, token: str, on_uploaded: Callable[[str], None], tls: TlsOptions | None = None
    ) -> None:
        self._link = SyncConnection(broker, tls=client_tls(tls))
        self._epoch, self._token = epoch, token
        self._on_uploaded = on_uploaded

    def __call__(self, summaries: DataFrame, batch_id: int) -> None:
        """Run one turn. Raises the error that ends the query: Refused when the broker rejects the lease."""
        winners = summaries.collect()
        reach("driver.collected")
        if not winners:
            return  # a query's first batch is empty without a plan; a plan is never empty
        turn = winners[0].turn
        assert all(winner.turn == turn for winner in winners)
        body = msgspec.json.encode([winner.asDict() for winner in winners])
        ext = headers.texts(epoch=self._epoch, turn=turn, token=self._token)
        self._link.ask(Command(code=RequestCode.WMQ_PIPELINE_COMMIT, ext=ext, body=body))
        reach("driver.committed")
        self._on_uploaded(f"turn {turn}: {sum(winner.rows for winner in winners)} rows in {len(winners)} parts")
