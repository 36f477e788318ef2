"""The Spark queries that do the turns of one broker. Each query has one lease and its own scratch checkpoint."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from wheelmq.spark.queries import scratch_checkpoint, start_turns
from wheelmq.spark.ranges import parallelism_of
from wheelmq.spark.source import AUTO, PARALLELISM, TLS, TOKEN, VIEW, WIRE
from wheelmq.spark.staged_turn import StagedTurn, StageTrial
from wheelmq.spark.turn import Turn, decided, uploaded
from wheelmq.system.tls_client import TlsOptions

STOP_S: Final = 15.0
"""Time limit for the stop of a query. By default Spark has none (`spark.sql.streaming.stopTimeout`)."""


class TurnQuery:
    def __init__(self, query: StreamingQuery, checkpoint: Path, stopped: threading.Event) -> None:
        """`stop` sets the event `stopped` first."""
        self._query = query
        self._checkpoint = checkpoint
        self._stopped = stopped

    @property
    def is_active(self) -> bool:
        return bool(self._query.isActive)

    def problem(self) -> str:
        """Return the line of the query's exception that names the problem; an empty text if there is none."""
        return _first_line(self._query.exception())

    def stop(self) -> None:
        """Stop the query. Raises Py4JError when it does not stop."""
        self._stopped.set()
        errors: list[Exception] = []

        def stop() -> None:
            try:
                self._query.stop()
            except Exception as error:
                errors.append(error)

        stopping = threading.Thread(target=stop, name="stop of a query", daemon=True)
        stopping.start()
        stopping.join(STOP_S)
        if stopping.is_alive():
            raise Py4JError(f"the query did not end within {STOP_S:.0f} s")
        if errors:
            raise errors[0]

    def remove_checkpoint(self) -> None:
        shutil.rmtree(self._checkpoint, ignore_errors=True)


class TurnQueries:
    """Starts the queries of one broker, whose data source is registered as `source`."""

    def __init__(
        self,
        session: SparkSession,
        broker: str,
        source: str,
        *,
        over_the_wire: bool = False,
        tls: TlsOptions | None = None,
        trial: StageTrial | None = None,
        queries: int = 1,
    ) -> None:
        """`trial` has the stage between decision and upload, or is None for turns without one.

        `queries` is the maximum number of queries that share the session.
        """
        self._session = session
        self._broker = broker
        self._source = source
        self._over_the_wire = over_the_wire
        self._tls = tls
        self._trial = trial
        self._queries = queries

    def start(self, lease: bytes, turned: Callable[[str], None]) -> TurnQuery:
        """Start a query under a lease, given as the broker's answer. It calls `turned` after each committed turn."""
        terms: dict[str, Any] = msgspec.json.decode(lease)
        epoch, token = int(terms["epoch"]), str(terms["token"])
        shown = {name: value for name, value in terms.items() if name != "token"}
        reader = (
            self._session.readStream.format(self._source)
            .option("broker", self._broker)
            .option("terms", msgspec.json.encode(shown).decode())
            .option(TOKEN, token)
            .option(VIEW, WIRE if self._over_the_wire else AUTO)
            .option(PARALLELISM, parallelism_of(self._session.sparkContext.defaultParallelism, self._queries))
        )
        if self._tls is not None:
            reader = reader.option(TLS, self._tls.to_json())
        checkpoint = scratch_checkpoint()
        name = f"timers of {terms['broker']}, epoch {epoch}"
        turn = Turn(self._broker, epoch, token, turned, self._tls)
        turn_rows, stopped = decided(reader.load(), terms), threading.Event()
        if self._trial is None:
            query = start_turns(self._uploaded(turn_rows, terms), turn, checkpoint, name=name)
        else:
            staged = StagedTurn(
                turn,
                self._trial,
                lambda rows: self._uploaded(rows, terms),
                precision_ms=int(terms["precision_ms"]),
                is_stopped=stopped.is_set,
            )
            query = start_turns(turn_rows, staged, checkpoint, name=name)
        return TurnQuery(query, checkpoint, stopped)

    def _uploaded(self, turn_rows: DataFrame, terms: dict[str, Any]) -> DataFrame:
        return uploaded(turn_rows, self._broker, terms, self._tls)


def _first_line(error: StreamingQueryException | None) -> str:
    lines = [line for line in str(error or "").splitlines() if line.strip()]
    telling = [line for line in lines if "Refused" in line or "Error" in line]
    return (telling or lines or [""])[-1][:500]
