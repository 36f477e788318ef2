"""A Spark session for many small turns.

A process has one session, because PySpark holds its gateway in a class. `open_session` starts the JVM (gateway.py).
`close_session` ends it and every worker before it returns. All files are in scratch folders (spark/scratch.py).
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]
from pyspark import SparkContext
from pyspark.sql import SparkSession

from wheelmq.pipeline import processes
from wheelmq.pipeline.executors import executor_settings, is_local_cluster
from wheelmq.pipeline.gateway import (
    Gateway,
    GatewaySettings,
    StartupCache,
    is_local,
    start_gateway,
    startup_cache,
)
from wheelmq.pipeline.java import JavaRuntime, find_java
from wheelmq.pipeline.session_options import HEAP
from wheelmq.spark import scratch

_log = logging.getLogger(__name__)

CACHE_VARIABLE = "WHEELMQ_JAVA_CACHE"
"""Name of the environment variable for the start-up cache.

auto or unset: use a cache, or create one during the first run. use: create none. off: use none.
"""

TRAINING_MEMORY_FREE_MIN = 1536 << 20
"""Minimum free memory to create a start-up cache, which needs a second JVM with its workers."""

TRAINING_DISK_FREE_MIN = 1 << 30
SOCKET_PATH_BYTES_MAX = 103
"""Maximum length of a socket's path on every system. Linux allows a few bytes more."""

NICENESS = 10
"""Niceness of JVM and workers above that of the driver."""

STOP_GRACE_S = 15.0

SETTINGS: Mapping[str, str] = {
    # Basic properties of a session.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.scheduler.mode": "FAIR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Python workers: forked from a prepared process (daemon.py), and kept between tasks.
    "spark.python.daemon.module": "wheelmq.pipeline.daemon",
    "spark.python.worker.reuse": "true",
    # A turn is small and its plan is known: two partitions, no adaptive execution, no batches to split.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.locality.wait": "0s",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # The checkpoint is scratch, and no operator keeps state.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.ui.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    "spark.sql.streaming.stopTimeout": "10s",
    # No user needs older data, and the listeners' memory would grow for hours.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "20",
}
"""Settings of every session. The caller's settings override them."""

LOCAL_SETTINGS: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Settings of a session whose tasks run on this machine. It listens only on this machine."""


@dataclass
class _Opened:
    """The open session of this process, and the processes that end with it."""

    session: SparkSession
    gateway: Gateway
    trainer: subprocess.Popen[bytes] | None = None


_opened: _Opened | None = None


def open_session(
    app_name: str,
    *,
    master: str = "local[2,4]",
    heap: str = HEAP,
    log_dir: Path | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark and return its session. The JVM's log goes to `log_dir`, or to a scratch folder without one."""
    java = find_java()
    if java.remark:
        _log.warning("%s. Spark runs on Java %d (%s).", java.remark, java.version, java.home)
    mode = os.environ.get(CACHE_VARIABLE, "auto")
    if mode not in ("auto", "use", "off"):
        raise ValueError(f"{CACHE_VARIABLE}={mode} is invalid: set it to auto, use or off")
    cache = None if mode == "off" else startup_cache(java)
    opened = open_jvm(java, spark_settings(app_name, master, conf or {}), cache, heap=heap, log_dir=log_dir)
    if mode == "auto" and cache is not None and not opened.gateway.cached:
        opened.trainer = _train_beside(cache)
    return opened.session


def close_session(session: SparkSession) -> None:
    """Stop the session's queries, its JVM and all Python workers. Returns when the last one is gone."""
    assert _opened is not None and _opened.session is session, "this session is not open"
    close_jvm(_opened, STOP_GRACE_S)


def stand_back(session: SparkSession) -> None:
    """Lower the priority of JVM and workers below that of the driver and of a broker on this machine.

    Call it after the first turns. Until then the JVM starts, which should not take long.
    """
    assert _opened is not None and _opened.session is session, "this session is not open"
    processes.stand_back(processes.family(_opened.gateway.process.pid), NICENESS)


def spark_settings(app_name: str, master: str, conf: Mapping[str, str]) -> dict[str, str]:
    places = ("spark.local.dir", "spark.sql.warehouse.dir")
    folders = {place: str(scratch.folder(place.split(".")[-2])) for place in places}
    local: Mapping[str, str] = executor_settings(os.environ)
    if is_local(master):
        local = {**LOCAL_SETTINGS, **_socket_settings(scratch.folder("sockets"))}
    elif is_local_cluster(master):
        local = {**local, **LOCAL_SETTINGS}
    ours = {"spark.master": master, "spark.app.name": app_name}
    return {**SETTINGS, **folders, **local, **conf, **ours}


def _socket_settings(folder: Path) -> dict[str, str]:
    """Return settings for Unix sockets between the JVM and its workers, unless the path is too long for the kernel.

    Over TCP, messages wait for delayed acknowledgements: a small turn takes 85 ms instead of 50.
    """
    path_bytes = len(os.fsencode(folder / f".{uuid.uuid4()}.sock"))
    return {
        "spark.python.unix.domain.socket.enabled": str(path_bytes <= SOCKET_PATH_BYTES_MAX).lower(),
        "spark.python.unix.domain.socket.dir": str(folder),
    }


def open_jvm(
    java: JavaRuntime,
    conf: Mapping[str, str],
    cache: StartupCache | None,
    *,
    heap: str = HEAP,
    log_dir: Path | None = None,
    options: tuple[str, ...] = (),
) -> _Opened:
    global _opened
    if _opened is not None or SparkContext._gateway is not None:
        raise RuntimeError("A process can have only one Spark session: close the open one first")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    options = (f"-Djava.io.tmpdir={scratch.folder('tmp')}", *options)
    gateway = start_gateway(GatewaySettings(java, log_dir or scratch.folder("log"), heap, conf, options), cache)
    try:
        session = _connect(gateway)
    except BaseException:
        gateway.close(grace_s=0)
        _forget()
        raise
    _opened = _Opened(session, gateway)
    return _opened


def _connect(gateway: Gateway) -> SparkSession:
    """Return a session over the gateway. Restores the SIGINT handler that PySpark replaces."""
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if main else None
    try:
        SparkContext(gateway=gateway.connect())
        return SparkSession.builder.getOrCreate()
    finally:
        if main:
            signal.signal(signal.SIGINT, handler)


def close_jvm(opened: _Opened, grace_s: float) -> None:
    global _opened
    _opened = None
    if opened.trainer is not None:
        processes.kill(processes.family(opened.trainer.pid))
        opened.trainer.wait()
    members = processes.family(opened.gateway.process.pid)
    stopping = threading.Thread(target=_stop_spark, args=[opened.session], daemon=True)
    if opened.gateway.process.poll() is None:
        stopping.start()
        stopping.join(STOP_GRACE_S)
    opened.gateway.close(0 if stopping.is_alive() else grace_s)
    _forget()  # only now: py4j waits forever if it closes a connection on which the JVM may still call back
    _, left = psutil.wait_procs(members, timeout=STOP_GRACE_S)
    processes.kill(left)


def _stop_spark(session: SparkSession) -> None:
    """Stop queries and session cleanly, as far as they answer. Any failure here ends with the JVM soon.

    Each call waits for the JVM, which may hang. So this runs in a thread that the caller need not wait for.
    """
    with contextlib.suppress(Exception):
        for query in session.streams.active:
            query.stop()
    with contextlib.suppress(Exception):
        session.stop()


def _forget() -> None:
    """Make PySpark forget the gateway, so that this process can open a session again."""
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    if context is not None and context._accumulatorServer is not None:
        context._accumulatorServer.shutdown()
    if gateway is not None:
        gateway.shutdown_callback_server(raise_exception=False)
        gateway.close()


@atexit.register
def _leave() -> None:
    if _opened is not None:
        close_jvm(_opened, STOP_GRACE_S)


def _train_beside(cache: StartupCache) -> subprocess.Popen[bytes] | None:
    """Create the start-up cache in another process, which uses only idle processor time and ends with this one."""
    try:
        cache.folder.parent.mkdir(parents=True, exist_ok=True)
        disk_free = shutil.disk_usage(cache.folder.parent).free
    except OSError:
        return None  # no files can be created in this home
    if disk_free < TRAINING_DISK_FREE_MIN or psutil.virtual_memory().available < TRAINING_MEMORY_FREE_MIN:
        return None
    command = [sys.executable, "-m", "wheelmq.pipeline.training"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, process_group=0)
