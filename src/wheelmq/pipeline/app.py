"""The pipeline in a Spark session of its own, for machines without a cluster.

    python -m wheelmq.pipeline.app --broker HOST:PORT [--broker ...] [--namesrv HOST:PORT ...] [--master MASTER]
                                   [--name NAME] [--over-the-wire] [--tls JSON] [--log-dir DIR]
                                   [--conf NAME=VALUE ...] [--driver-memory SIZE] [--ui] [--groups N]

It prints its events as JSON lines on standard output. A query that ends is started again under a new lease. When the
JVM is gone, the process ends, and its supervisor (pipeline.supervisor) starts it again, without any state.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
from py4j.protocol import Py4JError

from wheelmq.pipeline.daemon import PRELOAD_VARIABLE
from wheelmq.pipeline.session import close_session, open_session, stand_back
from wheelmq.pipeline.session_options import HEAP, SessionOptions
from wheelmq.pipeline.supervisor import HOLDER_VARIABLE
from wheelmq.spark.pipeline import GROUPS, run
from wheelmq.spark.ranges import TASKS_MAX
from wheelmq.system.credentials import take_access_key
from wheelmq.system.tls_client import TlsOptions

PRELOAD: Final = "wheelmq.pipeline.preload"
BROKERS_EXPECTED: Final = 4
"""Minimum number of brokers that local Spark has tasks for, when a name server lists the brokers."""

SPARE_TASKS: Final = 2
"""Tasks that local Spark has room for, in addition to one for each query group: some may wait for slow brokers."""

_saying = threading.Lock()


def say(event: str, **fields: object) -> None:
    with _saying:
        print(json.dumps({"event": event, **fields}), flush=True)


class _QuietStop(logging.Filter):
    """Logs a call that a stop cut off in one INFO line, without stack traces, because it is not an error."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        super().__init__()
        self._stopping = stopping

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if self._stopping() and isinstance(error, Py4JError | ConnectionError):
            first = str(error).strip().partition("\n")[0]
            record.msg, record.args = f"the stop cut off a call between Python and Java: {first}", ()
            record.levelno, record.levelname = logging.INFO, "INFO"
            record.exc_info = record.exc_text = None
        return True


def default_master(brokers: int, *, may_grow: bool, groups: int = GROUPS) -> str:
    """Return a local Spark master with room for all tasks of all brokers at once, or of all query groups.

    A task may wait for its broker. With less room, the tasks of a slow broker would block those of the others. In a
    group a task waits for a few seconds at most, and a small turn is one task. If the brokers may grow, there is room
    for BROKERS_EXPECTED brokers and for the groups.
    """
    if brokers == 1 and not may_grow:
        return "local[2,4]"
    if brokers > groups:
        return f"local[{max(os.cpu_count() or 1, groups + SPARE_TASKS)},4]"
    if may_grow:
        return f"local[{max(TASKS_MAX * max(brokers, BROKERS_EXPECTED), groups + SPARE_TASKS)},4]"
    return f"local[{TASKS_MAX * brokers},4]"


def _jvm_pid() -> int | None:
    return next((child.pid for child in psutil.Process().children() if child.name() == "java"), None)


def run_in_own_session(options: argparse.Namespace, session_options: SessionOptions, stop: threading.Event) -> None:
    """Open a session, and run turns in it until `stop` is set. Raises the error that ended the JVM."""
    os.environ[PRELOAD_VARIABLE] = PRELOAD
    holder_id = os.environ.pop(HOLDER_VARIABLE, None)  # workers must not inherit it
    access_key = take_access_key(os.environ)  # nor this: tasks get only the token of the lease
    master = options.master or default_master(
        len(options.broker), may_grow=bool(options.namesrv), groups=options.groups
    )
    session = open_session(
        "wheelmq",
        master=master,
        heap=session_options.driver_memory,
        log_dir=options.log_dir,
        conf=session_options.settings(),
    )
    say("session", master=master, pid=os.getpid(), jvm=_jvm_pid(), ui=session.sparkContext.uiWebUrl)
    try:
        run(
            session,
            brokers=options.broker,
            namesrv=options.namesrv,
            stop=stop,
            name=options.name,
            holder_id=holder_id,
            access_key=access_key,
            tls=None if options.tls is None else TlsOptions.from_json(options.tls),
            over_the_wire=options.over_the_wire,
            groups=options.groups,
            on_event=say,
            on_first_turn=lambda: stand_back(session),
        )
    finally:
        close_session(session)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="wheelmq.pipeline.app", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--broker", action="append", default=[], metavar="HOST:PORT")
    parser.add_argument("--namesrv", action="append", default=[], metavar="HOST:PORT")
    parser.add_argument("--master", help="any Spark master (default: local, with enough tasks for the brokers)")
    parser.add_argument("--name", default=f"pipeline-{os.getpid()}", help="name of the lease holder")
    parser.add_argument(
        "--over-the-wire", action="store_true", help="tasks read the store through requests, and map no files"
    )
    parser.add_argument("--tls", metavar="JSON", help="the TlsOptions of connections to brokers and name servers")
    parser.add_argument("--log-dir", type=Path)
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark")
    parser.add_argument("--driver-memory", default=HEAP, metavar="SIZE", help="heap of the driver's JVM")
    parser.add_argument(
        "--groups", type=int, default=GROUPS, metavar="N", help="queries that more than N brokers share"
    )
    parser.add_argument("--ui", action="store_true", help="serve Spark's UI")
    options = parser.parse_args(arguments)
    try:
        session_options = SessionOptions(tuple(options.conf), options.driver_memory, options.ui)
    except ValueError as error:
        parser.error(str(error))
    if not options.broker and not options.namesrv:
        parser.error("--broker or --namesrv is required")
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stop = threading.Event()
    for handler in logging.getLogger().handlers:
        handler.addFilter(_QuietStop(stop.is_set))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        run_in_own_session(options, session_options, stop)
    except (Py4JError, ConnectionError) as error:
        say("failed", why=f"{type(error).__name__}: {error}"[:500])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
