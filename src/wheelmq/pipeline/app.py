"""The pipeline: a Structured Streaming application with one query for each broker.

    python -m wheelmq.pipeline.app --broker HOST:PORT [--broker ...] [--master MASTER] [--name NAME] [--log-dir DIR]

It says what happens as JSON lines on standard output. A query that ends is started anew under a new lease; when the
JVM is gone the process ends, and whoever watches it (pipeline.supervisor) starts it again. Nothing that it holds is
needed to go on: the broker has the truth.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.link import Link
from wheelmq.pipeline.session import close_session, open_session, scratch_checkpoint, stand_back, start_turns
from wheelmq.pipeline.source import FORMAT, TimerSource
from wheelmq.pipeline.turn import Turn, uploaded
from wheelmq.system.failpoint import reach

log = logging.getLogger(__name__)

POLL_S = 0.2
RENEW_S = 1.5
RETRY_S = 0.5
PRELOAD = "wheelmq.pipeline.preload"


def say(event: str, **fields: object) -> None:
    """One JSON line for whoever reads the standard output."""
    print(json.dumps({"event": event, **fields}), flush=True)


class BrokerTurns:
    """The lease at one broker and the query that works under it."""

    def __init__(self, session: SparkSession, broker: str, name: str) -> None:
        self._session = session
        self._broker = broker
        self._name = name
        self._link = Link(broker)
        self._query: StreamingQuery | None = None
        self._checkpoint: Path | None = None
        self._epoch = 0
        self._next_try = 0.0
        self._next_renewal = 0.0
        self._last_problem = ""
        self.has_turned = False

    def step(self) -> None:
        """Start the query if there is none, renew the lease, see whether the query has ended."""
        now = time.monotonic()
        if self._query is None:
            if now >= self._next_try:
                self._start(now)
            return
        if not self._query.isActive:
            self._ended(self._query)
            return
        if now >= self._next_renewal:
            self._next_renewal = now + RENEW_S
            self._renew()

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()
        self._link.close()

    def _start(self, now: float) -> None:
        try:
            answer = self._link.ask(Command(code=RequestCode.WMQ_PIPELINE_OPEN, ext={"name": self._name}))
        except (CallError, Refused) as problem:
            self._next_try = now + RETRY_S
            if str(problem) != self._last_problem:
                self._last_problem = str(problem)
                say("waiting", broker=self._broker, why=str(problem))
            return
        self._last_problem = ""
        terms: dict[str, Any] = msgspec.json.decode(answer.body)
        self._epoch = int(terms["epoch"])
        reach("driver.opened")
        rows = (
            self._session.readStream.format(FORMAT)
            .option("broker", self._broker)
            .option("terms", answer.body.decode() if isinstance(answer.body, bytes) else "")
            .load()
        )
        self._checkpoint = scratch_checkpoint()
        self._query = start_turns(
            uploaded(rows, self._broker, terms),
            Turn(self._broker, self._epoch, self._turned),
            self._checkpoint,
            name=f"timers of {terms['broker']}, epoch {self._epoch}",
        )
        say("turning", broker=self._broker, epoch=self._epoch)

    def _renew(self) -> None:
        ext = headers.texts(epoch=self._epoch)
        try:
            self._link.ask(Command(code=RequestCode.WMQ_PIPELINE_RENEW, ext=ext))
        except (CallError, Refused) as problem:
            log.info("the lease was not renewed: %s", problem)

    def _ended(self, query: StreamingQuery) -> None:
        self._query = None
        if self._checkpoint is not None:
            shutil.rmtree(self._checkpoint, ignore_errors=True)  # it is never read again
        error = query.exception()
        say("query ended", broker=self._broker, epoch=self._epoch, why=_first_line(error))

    def _turned(self, text: str) -> None:
        self.has_turned = True
        log.info("%s: %s", self._broker, text)


def _jvm_pid() -> int | None:
    return next((child.pid for child in psutil.Process().children() if child.name() == "java"), None)


def _first_line(error: StreamingQueryException | None) -> str:
    lines = [line for line in str(error or "").splitlines() if line.strip()]
    telling = [line for line in lines if "Refused" in line or "Error" in line]
    return (telling or lines or [""])[-1][:500]


def run(brokers: list[str], name: str, master: str, log_dir: Path | None, stopping: Callable[[], bool]) -> None:
    """Turn until `stopping`. Raises what ended the JVM."""
    os.environ["WHEELMQ_WORKER_PRELOAD"] = PRELOAD
    session = open_session("wheelmq", master=master, log_dir=log_dir)
    say("session", master=master, pid=os.getpid(), jvm=_jvm_pid())
    session.dataSource.register(TimerSource)
    turns = [BrokerTurns(session, broker, name) for broker in brokers]
    starting = True
    try:
        while not stopping():
            for one in turns:
                one.step()
            if starting and any(one.has_turned for one in turns):
                starting = False
                stand_back(session)
            time.sleep(POLL_S)
        for one in turns:
            one.stop()
    finally:
        close_session(session)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="wheelmq.pipeline.app", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--broker", action="append", required=True, metavar="HOST:PORT")
    parser.add_argument("--master", default="local[2,4]", help="any Spark master (default: %(default)s)")
    parser.add_argument("--name", default=f"pipeline-{os.getpid()}", help="who holds the lease")
    parser.add_argument("--log-dir", type=Path)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        run(options.broker, options.name, options.master, options.log_dir, stop.is_set)
    except (Py4JError, ConnectionError) as error:
        say("failed", why=f"{type(error).__name__}: {error}"[:500])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
