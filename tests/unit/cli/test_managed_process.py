"""Child processes that die, hang and stop, as small shell scripts."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.unit.client.conftest import until
from wheelmq.net import managed_process as module
from wheelmq.net.managed_process import CANNOT_START, ManagedProcess, end_text
from wheelmq.system.clock import SystemClock
from wheelmq.system.log_files import bound

READY = """echo '{"event":"listening"}'"""


class Watched:
    def __init__(self, folder: Path, script: str) -> None:
        self.events: list[dict[str, object]] = []
        self.deaths: list[tuple[str, float]] = []
        self.log = folder / "logs" / "child.log"
        self.child = ManagedProcess(
            "child",
            ["/bin/sh", "-c", script],
            self.log,
            clock=SystemClock(),
            on_event=self.events.append,
            on_death=lambda how, pause_s: self.deaths.append((how, pause_s)),
        )


def run(folder: Path, script: str, scenario: Callable[[Watched], Awaitable[None]]) -> Watched:
    async def whole() -> Watched:
        watched = Watched(folder, script)
        watched.child.start()
        await scenario(watched)
        assert await watched.child.stop(5.0) or watched.child.pid is None
        return watched

    return asyncio.run(whole())


def test_events_are_reported_and_other_lines_are_logged(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        await until(lambda: len(watched.events) == 1)

    watched = run(tmp_path, f"echo hello; echo complaint >&2; {READY}; exec sleep 60", scenario)
    assert watched.events == [{"event": "listening"}]
    assert sorted(watched.log.read_text().splitlines()) == ["complaint", "hello"]
    assert watched.deaths == []


def test_a_dead_child_is_restarted_at_once_and_then_after_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", (0.0, 0.01, 0.02))

    async def scenario(watched: Watched) -> None:
        for _ in range(4):
            await until(lambda: len(watched.events) == len(watched.deaths) + 1)
            watched.child.came_up()
            pid, deaths = watched.child.pid, len(watched.deaths)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until(lambda deaths=deaths: len(watched.deaths) == deaths + 1)  # type: ignore[misc]
        await until(lambda: len(watched.events) == 5)

    watched = run(tmp_path, f"{READY}; exec sleep 60", scenario)
    assert [pause for _, pause in watched.deaths] == [0.0, 0.01, 0.02, 0.02]
    assert {how for how, _ in watched.deaths} == {"it was ended by SIGKILL"}
    assert watched.child.failure is None


def test_a_child_that_cannot_start_is_not_restarted(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        await watched.child.failed.wait()

    script = f"""echo '{{"event":"failed","why":"the port is taken"}}'; exit {CANNOT_START}"""
    watched = run(tmp_path, script, scenario)
    assert watched.child.failure == "the port is taken"
    assert watched.child.deaths == 1


def test_a_child_that_never_comes_up_has_limited_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", (0.0,))

    async def scenario(watched: Watched) -> None:
        await watched.child.failed.wait()

    watched = run(tmp_path, "exit 3", scenario)
    assert (watched.child.failure, watched.child.deaths) == ("it ended with code 3", module.DEATHS_MAX)


def test_a_missing_command_is_a_failure(tmp_path: Path) -> None:
    async def scenario() -> None:
        watched = Watched(tmp_path, "")
        watched.child.command = (str(tmp_path / "absent"),)
        watched.child.start()
        await watched.child.failed.wait()
        assert "absent" in str(watched.child.failure)
        assert not await watched.child.stop(1.0)

    asyncio.run(scenario())


def test_a_stop_sends_sigterm_and_then_sigkill(tmp_path: Path) -> None:
    async def scenario() -> None:
        polite = Watched(tmp_path, f"trap 'exit 0' TERM; {READY}; while :; do sleep 0.05; done")
        stubborn = Watched(tmp_path, f"trap '' TERM; {READY}; while :; do sleep 0.05; done")
        for watched, expected in ((polite, True), (stubborn, False)):
            watched.child.start()
            await until(lambda watched=watched: len(watched.events) == 1)  # type: ignore[misc]
            assert await watched.child.stop(0.3) is expected
            assert watched.child.pid is None

    asyncio.run(scenario())


def test_the_death_of_the_parent_closes_the_input_of_a_child(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        await until(lambda: len(watched.events) == 1)
        process = watched.child._process
        assert process is not None and process.stdin is not None
        process.stdin.close()
        await until(lambda: len(watched.events) == 2)

    watched = run(tmp_path, f"""{READY}; cat; echo '{{"event":"alone"}}'; exec sleep 60""", scenario)
    assert watched.events[1] == {"event": "alone"}


def test_a_stop_during_the_pause_prevents_the_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", (60.0,))

    async def scenario(watched: Watched) -> None:
        await until(lambda: len(watched.deaths) == 1)

    watched = run(tmp_path, "exit 1", scenario)
    assert watched.child.deaths == 1


def test_the_end_of_a_process_is_described() -> None:
    assert end_text(3) == "it ended with code 3"
    assert end_text(-9) == "it was ended by SIGKILL"
    assert end_text(-250) == "it was ended by signal 250"


def test_the_log_of_a_verbose_child_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_LOOK_S", 0.01)
    monkeypatch.setattr(module, "bound", lambda path: bound(path, 10_000))

    async def scenario(watched: Watched) -> None:
        await until(lambda: watched.log.with_name("child.log.1").exists())
        await until(lambda: watched.log.stat().st_size > 0)

    run(tmp_path, "while :; do echo 0123456789012345678901234567890123456789 >&2; done", scenario)
    assert (tmp_path / "logs" / "child.log.1").stat().st_size <= 10_000


FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full, a file on a full disk")


@needs_full
def test_a_hanging_child_is_killed_although_its_log_disk_is_full(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        await until(lambda: len(watched.events) == 1)
        watched.child.end_process("it hangs")
        await until(lambda: len(watched.events) == 2)

    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "child.log").symlink_to(FULL)
    watched = run(tmp_path, f"echo a line that is lost; {READY}; exec sleep 60", scenario)
    assert watched.deaths == [("it was ended by SIGKILL: it hangs", 0.0)]


def test_a_child_is_restarted_although_its_death_cannot_be_printed(tmp_path: Path) -> None:
    """The terminal of `wheelmq up` may be a file on a full disk."""

    def fail(*_: object) -> None:
        deaths.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    deaths: list[int] = []

    async def scenario(watched: Watched) -> None:
        watched.child._on_event = watched.child._on_death = fail
        await until(lambda: len(deaths) >= 2 and watched.child.pid is not None)
        pid = watched.child.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: watched.child.deaths == 1 and watched.child.pid not in (None, pid))

    run(tmp_path, f"{READY}; {READY}; exec sleep 60", scenario)
