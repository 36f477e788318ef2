"""TestBroker: real sockets, a clock that the test moves, and the plugin for pytest."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from wheelmq.client import PullSettings, SyncProducer, SyncPullConsumer
from wheelmq.config.errors import ConfigError
from wheelmq.formats.kernels import cache, jit
from wheelmq.testing import TestBroker
from wheelmq.testing.movable_clock import MovableClock

DAY_MS = 86_400_000
SOURCES = Path(__file__).parents[3] / "src"


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as running:
        yield running


def bodies(broker: TestBroker, topic: str) -> list[bytes]:
    """Return all bodies in a topic."""
    with SyncPullConsumer(broker.namesrv, "readers", PullSettings(auto_commit=False)) as consumer:
        consumer.assign(consumer.queues_of(topic))
        found = []
        while messages := consumer.poll(timeout_ms=300):
            found += [message.body for message in messages]
        return sorted(found)


@pytest.mark.parametrize(
    ("delay", "before", "then"),
    [
        ({"delay_ms": 3 * DAY_MS}, timedelta(days=3, minutes=-1), timedelta(minutes=1)),
        ({"delay_ms": 1500}, timedelta(0), timedelta(seconds=2)),
        ({"delay_level": 18}, timedelta(hours=1, minutes=59), timedelta(minutes=2)),
        ({"delay_in_seconds": 40 * 86_400}, timedelta(days=39), timedelta(days=2)),
    ],
    ids=["timer", "soon", "level", "block"],
)
def test_a_message_leaves_when_its_time_comes(
    broker: TestBroker, delay: dict[str, int], before: timedelta, then: timedelta
) -> None:
    broker.clock.freeze()
    with SyncProducer(broker.namesrv) as producer:
        producer.send("T", b"now")
        producer.send("T", b"later", **delay)
    broker.advance(before)
    assert bodies(broker, "T") == [b"now"]
    broker.advance(then)
    assert bodies(broker, "T") == [b"later", b"now"]


def test_all_messages_of_a_long_time_leave_in_one_move(broker: TestBroker) -> None:
    with SyncProducer(broker.namesrv) as producer:
        for hour in range(1, 73):
            producer.send("T", b"%02d" % hour, delay_ms=hour * 3_600_000)
    broker.advance(days=3)
    assert bodies(broker, "T") == [b"%02d" % hour for hour in range(1, 73)]


def test_a_frozen_clock_moves_only_by_hand(broker: TestBroker) -> None:
    broker.clock.freeze()
    began = broker.now
    broker.advance(hours=1, minutes=30)
    assert broker.now - began == timedelta(minutes=90)


def test_a_thawed_clock_runs_on_from_its_time() -> None:
    clock = MovableClock()
    clock.freeze()
    clock.move(timedelta(days=1))
    frozen_ms = clock.now_ms()
    clock.thaw()
    assert not clock.is_frozen
    assert frozen_ms <= clock.now_ms() < frozen_ms + DAY_MS // 2


def test_a_clock_does_not_go_back(broker: TestBroker) -> None:
    with pytest.raises(ValueError, match="start another TestBroker"):
        broker.advance(days=-1)


def test_settings_are_those_of_a_broker() -> None:
    with TestBroker(broker_name="mine") as broker, SyncProducer(broker.namesrv) as producer:
        assert producer.send("T", b"x").queue.broker_name == "mine"
    with pytest.raises(ConfigError, match="flush_mode"):
        TestBroker(flush_mode="SOMETIMES").start()
    with pytest.raises(ConfigError, match=r"there is no setting 'broker_nam'.*broker_name"):
        TestBroker(broker_nam="mine").start()


def test_a_stopped_broker_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wheelmq.testing.broker.MEMORY", tmp_path)
    broker = TestBroker()
    broker.start()
    assert list(tmp_path.iterdir())
    broker.stop()
    broker.stop()
    assert not list(tmp_path.iterdir())
    with pytest.raises(RuntimeError, match="is not running"):
        broker.advance(days=1)
    with pytest.raises(RuntimeError, match="use another one"):
        broker.start()


@pytest.mark.parametrize("mode", [jit.COMPILED, jit.BACKGROUND])
def test_without_compiled_kernels_it_starts_with_the_plain_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(cache, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(jit, "MODE", mode)
    with TestBroker() as broker, SyncProducer(broker.namesrv) as producer:
        assert not jit.available()
        assert [one for one in psutil.Process().children() if "kernel_compiler" in " ".join(one.cmdline())] == []
        producer.send("T", b"x", delay_ms=60_000)
        broker.advance(minutes=1)
        assert bodies(broker, "T") == [b"x"]
    assert list(tmp_path.iterdir()) == [], "nothing was compiled"


def test_a_start_that_takes_too_long_leaves_no_tasks(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    async def block(broker: TestBroker, folder: Path) -> None:
        time.sleep(0.3)

    monkeypatch.setattr(TestBroker, "_start", block)
    monkeypatch.setattr("wheelmq.testing.broker.START_S", 0.05)
    with pytest.raises(TimeoutError):
        TestBroker().start()
    gc.collect()
    assert [str(one.message) for one in recwarn if "never awaited" in str(one.message)] == []


def test_the_plugin_gives_each_test_an_empty_broker(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        """
import pytest
from wheelmq.client import SyncProducer

@pytest.fixture
def wheelmq_broker_settings():
    return {"broker_name": "chosen"}

@pytest.mark.parametrize("number", range(2))
def test_send(wheelmq_broker, number):
    with SyncProducer(wheelmq_broker.namesrv) as producer:
        sent = producer.send("T", b"x")
        assert sent.queue.broker_name == "chosen"
        assert sent.queue_offset == 0
"""
    )
    plugin = ["-p", "wheelmq.testing.pytest_plugin"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(SOURCES), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "2 passed" in run.stdout, run.stdout + run.stderr


def test_a_process_that_uses_one_keeps_its_settings(tmp_path: Path) -> None:
    """The broker changes neither the environment nor the garbage collector of the tests."""
    program = """
import gc, os
from wheelmq.testing import TestBroker
with TestBroker() as broker:
    pass
assert "WHEELMQ_KERNELS" not in os.environ
assert gc.get_freeze_count() == 0 and gc.isenabled()
"""
    env = {name: value for name, value in os.environ.items() if name != "WHEELMQ_KERNELS"}
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**env, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
