"""A Spark session fit for many small turns, opened and really closed.

One session per process, since PySpark holds its gateway in a class. `open_session` starts the JVM
(gateway.py) with settings that make a small turn cheap; `close_session` ends the JVM and every worker, and
only then returns.

Everything that Spark writes lies in scratch folders of this process: nothing in them outlives it, and what a
killed process left is removed by the next one. A scratch folder is held by a lock on the file beside it,
which the kernel drops when the process dies, in whatever way.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import logging
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]
import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import StreamingQuery

from wheelmq.pipeline.gateway import (
    Gateway,
    GatewayFailed,
    GatewaySettings,
    StartupCache,
    is_local,
    start_gateway,
    startup_cache,
)
from wheelmq.pipeline.java import JavaRuntime, find_java

_log = logging.getLogger(__name__)

CACHE_VARIABLE = "WHEELMQ_JAVA_CACHE"
"""auto (or unset): use a start-up cache, make one beside the first run; use: make none; off: use none."""

SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_FREE_MIN = 64 << 20
"""A checkpoint of the pipeline holds some hundred small files at most."""

TRAINING_MEMORY_FREE_MIN = 1536 << 20
"""Making a start-up cache takes a second JVM with its workers; it does not compete for the last memory."""

TRAINING_DISK_FREE_MIN = 1 << 30
TRAINING_DELAY_S = 20.0
"""By then the first run has had its start; a shorter run leaves the making of a cache to a longer one."""

TRAINING_TURNS = 10
TRAINING_DEADLINE_S = 300.0
SOCKET_PATH_BYTES_MAX = 103
"""What fits in a socket's address on every system (Linux takes a few more)."""

STOP_GRACE_S = 15.0
POLL_S = 0.02

SETTINGS: Mapping[str, str] = {
    # What a session is.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.scheduler.mode": "FAIR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Python workers: forked warm (daemon.py), kept between tasks.
    "spark.python.daemon.module": "wheelmq.pipeline.daemon",
    "spark.python.worker.reuse": "true",
    # A turn is small and its plan is known: two partitions, nothing to adapt, batches that need no cutting.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.locality.wait": "0s",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # The checkpoint is scratch and no operator keeps state.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.ui.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    "spark.sql.streaming.stopTimeout": "10s",
    # Nobody looks back further, and what the listeners keep is memory that grows for hours.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "20",
}
"""Settings of every session; the caller's win over them."""

LOCAL_SETTINGS: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Settings of a session whose tasks run in the driver's own JVM: nothing listens beyond this machine."""

POOL = "spark.scheduler.pool"
PROGRESS_IN_MEMORY: Mapping[str, str] = {
    "asyncProgressTrackingEnabled": "true",
    "asyncProgressTrackingCheckpointIntervalMs": str(365 * 24 * 3600 * 1000),
    "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
}


@dataclass
class _Opened:
    """The one open session of this process and what must end with it."""

    session: SparkSession
    gateway: Gateway
    trainer: subprocess.Popen[bytes] | None = None


_opened: _Opened | None = None


def open_session(
    app_name: str,
    *,
    master: str = "local[2,4]",
    heap: str = "512m",
    log_dir: Path | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark and return its session; the JVM's log goes to `log_dir`, or to scratch if none is named."""
    java = find_java()
    if java.remark:
        _log.warning("%s. Spark runs on Java %d (%s).", java.remark, java.version, java.home)
    mode = os.environ.get(CACHE_VARIABLE, "auto")
    if mode not in ("auto", "use", "off"):
        raise ValueError(f"{CACHE_VARIABLE}={mode} is not known: set it to auto, use or off")
    cache = None if mode == "off" else startup_cache(java)
    opened = _open(java, _settings(app_name, master, conf or {}), cache, heap=heap, log_dir=log_dir)
    if mode == "auto" and cache is not None and not opened.gateway.cached:
        opened.trainer = _train_beside(cache)
    return opened.session


def close_session(session: SparkSession) -> None:
    """Stop the session's queries, end its JVM and all Python workers; returns when the last one is gone."""
    assert _opened is not None and _opened.session is session, "this session is not open"
    _close(_opened, STOP_GRACE_S)


def scratch_checkpoint() -> Path:
    """A new, empty folder for a query's checkpoint, in memory if there is room; it goes with this process.

    Who starts queries again and again removes the folder of each one that ended.
    """
    return _scratch("checkpoint", _scratch_base())


def start_turns(
    rows: DataFrame, turn: Callable[[DataFrame, int], None], checkpoint: Path, name: str | None = None
) -> StreamingQuery:
    """Start a query that hands every batch to `turn`: progress kept in memory, a FAIR pool of its own.

    Right only for a query that never starts again from its checkpoint: each start takes a new, empty one.
    (With progress in files, Hadoop's local file system forks a `chmod` for each of a batch's four files.)
    Spark does not call the source's `commit`.
    """
    context = rows.sparkSession.sparkContext
    writer = rows.writeStream.foreachBatch(turn).option("checkpointLocation", str(checkpoint))
    writer = writer if name is None else writer.queryName(name)
    pool = context.getLocalProperty(POOL)
    context.setLocalProperty(POOL, name or checkpoint.name)  # the query's thread takes over what it finds
    try:
        return writer.options(**PROGRESS_IN_MEMORY).start()
    finally:
        context.setLocalProperty(POOL, pool)


def map_in_arrow(
    rows: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
) -> DataFrame:
    """`DataFrame.mapInArrow` without pandas, which PySpark demands of the driver and then never uses."""
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    udf = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    mapped = rows._jdf.mapInArrow(udf(*[rows[name] for name in rows.columns])._jc, False, None)
    return DataFrame(mapped, rows.sparkSession)


def _settings(app_name: str, master: str, conf: Mapping[str, str]) -> dict[str, str]:
    places = ("spark.local.dir", "spark.sql.warehouse.dir")
    folders = {place: str(_scratch(place.split(".")[-2])) for place in places}
    local = {**LOCAL_SETTINGS, **_socket_settings(_scratch("sockets"))} if is_local(master) else {}
    ours = {"spark.master": master, "spark.app.name": app_name}
    return {**SETTINGS, **folders, **local, **conf, **ours}


def _socket_settings(folder: Path) -> dict[str, str]:
    """Unix sockets between the JVM and its workers, unless the folder's path is too long for the kernel.

    Over TCP, exchanges wait for delayed acknowledgements: a small turn takes 85 ms in place of 50.
    """
    path_bytes = len(os.fsencode(folder / f".{uuid.uuid4()}.sock"))
    return {
        "spark.python.unix.domain.socket.enabled": str(path_bytes <= SOCKET_PATH_BYTES_MAX).lower(),
        "spark.python.unix.domain.socket.dir": str(folder),
    }


def _open(
    java: JavaRuntime,
    conf: Mapping[str, str],
    cache: StartupCache | None,
    *,
    heap: str = "512m",
    log_dir: Path | None = None,
    options: tuple[str, ...] = (),
) -> _Opened:
    """Start the JVM and connect PySpark to it."""
    global _opened
    if _opened is not None or SparkContext._gateway is not None:
        raise RuntimeError("A process has one Spark session: close the one that is open first")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    options = (f"-Djava.io.tmpdir={_scratch('tmp')}", *options)
    gateway = start_gateway(GatewaySettings(java, log_dir or _scratch("log"), heap, conf, options), cache)
    try:
        session = _connect(gateway)
    except BaseException:
        gateway.close(grace_s=0)
        _forget()
        raise
    _opened = _Opened(session, gateway)
    return _opened


def _connect(gateway: Gateway) -> SparkSession:
    """A session over the gateway. PySpark puts a SIGINT handler of its own in place, which is undone here."""
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if main else None
    try:
        SparkContext(gateway=gateway.connect())
        return SparkSession.builder.getOrCreate()
    finally:
        if main:
            signal.signal(signal.SIGINT, handler)


def _close(opened: _Opened, grace_s: float) -> None:
    global _opened
    _opened = None
    if opened.trainer is not None:
        _kill(_family(opened.trainer.pid))
        opened.trainer.wait()
    family = _family(opened.gateway.process.pid)
    stopping = threading.Thread(target=_stop_spark, args=[opened.session], daemon=True)
    if opened.gateway.process.poll() is None:
        stopping.start()
        stopping.join(STOP_GRACE_S)
    opened.gateway.close(0 if stopping.is_alive() else grace_s)
    _forget()  # only now: py4j waits for ever if it closes a connection on which the JVM may still call back
    _, left = psutil.wait_procs(family, timeout=STOP_GRACE_S)
    _kill(left)


def _stop_spark(session: SparkSession) -> None:
    """Stop in good order what still answers; whatever fails here ends with the JVM a moment later.

    Each call waits for the JVM, which may hang: so this runs in a thread that nobody needs to wait for.
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


def _family(pid: int) -> list[psutil.Process]:
    """A process and all that came of it."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=STOP_GRACE_S)


@atexit.register
def _leave() -> None:
    if _opened is not None:
        _close(_opened, STOP_GRACE_S)
    _drop_scratch()


def make_startup_cache() -> bool:
    """Make the start-up cache now, in this process, which must have no session open; some 30 s.

    For images and installers. False if there is one already, if another process is making it, or if this Java
    can have none.
    """
    cache = startup_cache(find_java())
    return cache is not None and cache.make(_exercise)


def _exercise(options: tuple[str, ...]) -> None:
    """Run Spark as the pipeline does, so that the JVM learns which classes that takes."""
    opened = _open(find_java(), _settings("wheelmq-training", "local[2,4]", {}), None, options=options)
    try:
        _run_training_turns(opened.session)
    finally:
        _close(opened, TRAINING_DEADLINE_S)  # the JVM writes down what it learned as it ends


def _run_training_turns(session: SparkSession) -> None:
    done: list[int] = []

    def turn(rows: DataFrame, turn_id: int) -> None:
        rows = rows.withColumn("slot", (functions.col("due_ms") / 1000).cast("long"))
        if turn_id % 2:
            gone = rows.where("origin % 10 = 0").select("origin")
            rows = rows.join(gone, "origin", "left_anti")
        rows = rows.where("due_ms >= 0").sortWithinPartitions("due_ms", "origin")
        done.append(map_in_arrow(rows, _count_rows, "rows long").collect()[0].rows)

    session.dataSource.register(_TrainingSource)
    rows = session.readStream.format(_TrainingSource.name()).load()
    query = start_turns(rows, turn, scratch_checkpoint())
    deadline = time.monotonic() + TRAINING_DEADLINE_S
    while len(done) < TRAINING_TURNS:
        if not query.isActive or time.monotonic() > deadline:
            raise GatewayFailed(f"the training run ended after {len(done)} turns: {query.exception()}")
        time.sleep(POLL_S)


class _TrainingSource(DataSource):  # type: ignore[misc]
    """A stream of a few rows, as wide as the pipeline's own."""

    @classmethod
    def name(cls) -> str:
        return "wheelmq_training"

    def schema(self) -> str:
        return "origin long, due_ms long, log_position long, size int"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _TrainingReader()


class _TrainingReader(DataSourceStreamReader):  # type: ignore[misc]
    """Two partitions of a hundred rows in every turn."""

    def initialOffset(self) -> dict[str, int]:
        return {"turn": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"turn": start["turn"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(part) for part in range(2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        longs = pa.array(range(100), pa.int64())
        columns = [longs, longs, longs, longs.cast(pa.int32())]
        yield pa.RecordBatch.from_arrays(columns, names=["origin", "due_ms", "log_position", "size"])


def _count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    count = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_arrays([pa.array([count], pa.int64())], names=["rows"])


def _train_beside(cache: StartupCache) -> subprocess.Popen[bytes] | None:
    """Make the start-up cache in another process, which takes only idle processor and ends with this one."""
    try:
        cache.folder.parent.mkdir(parents=True, exist_ok=True)
        disk_free = shutil.disk_usage(cache.folder.parent).free
    except OSError:
        return None  # a home that takes no files
    if disk_free < TRAINING_DISK_FREE_MIN or psutil.virtual_memory().available < TRAINING_MEMORY_FREE_MIN:
        return None
    command = [sys.executable, "-c", f"from {__name__} import _train; _train()"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, process_group=0)


def _train() -> None:
    """The life of the process that `_train_beside` starts."""
    if select.select([sys.stdin], [], [], TRAINING_DELAY_S)[0]:
        return  # the parent was a short run
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    make_startup_cache()


def _leave_with_parent() -> None:
    """Wait for the end of stdin, which comes when the parent is gone, and end at once.

    Our JVM would notice the same of us, but first write down what it learned.
    """
    os.read(sys.stdin.fileno(), 1)
    _kill(_family(os.getpid())[1:])
    os._exit(1)


def _scratch_base() -> Path:
    """Shared memory if this machine has some to spare, else the folder for temporary files."""
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(SHARED_MEMORY).free
        if free >= SHARED_MEMORY_FREE_MIN and os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
            return SHARED_MEMORY
    return Path(tempfile.gettempdir())


_held: dict[Path, tuple[Path, int]] = {}
"""By base folder: this process's own folder in it, and the open lock that says that it is in use."""


def _scratch(kind: str, base: Path | None = None) -> Path:
    """A new folder inside this process's scratch folder in `base`."""
    base = base or Path(tempfile.gettempdir())
    if base not in _held:
        _held[base] = _hold_scratch(base)
    folder, _ = _held[base]
    return Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=folder))


def _hold_scratch(base: Path) -> tuple[Path, int]:
    """Make this process's folder and lock it; remove the folders whose lock nobody holds any more."""
    root = base / f"wheelmq-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    status = root.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{root} is not yours: remove it, or point TMPDIR at a folder of your own")
    turnstile = _open_lock(root / ".lock")
    try:
        fcntl.flock(turnstile, fcntl.LOCK_EX)  # nobody sweeps between the making of a lock and its taking
        for path in root.glob("*.lock"):
            if path.name != ".lock":
                _sweep(path)
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
        lock = _open_lock(folder.with_suffix(".lock"))
        fcntl.flock(lock, fcntl.LOCK_EX)
    finally:
        os.close(turnstile)
    return folder, lock


def _sweep(lock_path: Path) -> None:
    """Remove a scratch folder if the process that made it is gone."""
    lock = _open_lock(lock_path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
        lock_path.unlink(missing_ok=True)
    finally:
        os.close(lock)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _drop_scratch() -> None:
    for folder, lock in _held.values():
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(".lock").unlink(missing_ok=True)
        os.close(lock)
    _held.clear()
