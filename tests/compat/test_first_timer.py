"""The programs of docs/how-to/first-timer.md run with WheelMQ: Java always, Go and Node with `make compat`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import compat.go.run
import compat.java.run
import compat.node.run
from compat.building import run_tool
from compat.client.servers import ours
from wheelmq.client import SyncProducer

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "first-timer.md").read_text()
DEADLINE_S = 120
WHOLE = pytest.mark.skipif(os.environ.get("COMPAT") != "whole", reason="COMPAT=whole, as `make compat` sets it")
NO_GO = compat.go.run.go_found()
NO_NODE = compat.node.run.node_found()

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of brokers that know the topic."""
    with ours(tmp_path_factory.mktemp("servers")) as cluster:
        address = cluster.namesrvs[0].address
        with SyncProducer(address) as producer:
            producer.send("Orders", b"hello")
        yield address


def write(language: str, path: Path, namesrv: str) -> None:
    """Write the program of the page to `path`."""
    [program] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert "127.0.0.1:9876" in program
    path.write_text(program.replace("127.0.0.1:9876", namesrv))


def output(command: list[str], folder: Path, **environment: str) -> list[str]:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.java
def test_the_program_in_java_receives_its_timer(namesrv: str, tmp_path: Path) -> None:
    write("java", tmp_path / "FirstTimer.java", namesrv)
    class_path = compat.java.run.project(compat.java.run.CLIENTS[0]).class_path()
    command = ["java", f"-Duser.home={tmp_path}", "-cp", class_path, "FirstTimer.java"]
    assert "pay up" in output(command, tmp_path)


@WHOLE
@pytest.mark.skipif(NO_GO is not None, reason=str(NO_GO))
def test_the_program_in_go_receives_its_timer(namesrv: str, tmp_path: Path) -> None:
    write("go", tmp_path / "main.go", namesrv)
    for name in ("go.mod", "go.sum"):
        shutil.copy(compat.go.run.FOLDER / name, tmp_path / name)
    build = ["go", "build", "-mod=mod", "-o", "first-timer", "."]
    run_tool(build, tmp_path, compat.go.run.BUILD_DEADLINE_S, GOFLAGS="-modcacherw", GOTOOLCHAIN="local")
    assert "pay up" in output([str(tmp_path / "first-timer")], tmp_path)


@WHOLE
@pytest.mark.skipif(NO_NODE is not None, reason=str(NO_NODE))
def test_the_program_in_node_receives_its_timer(namesrv: str, tmp_path: Path) -> None:
    write("javascript", tmp_path / "first_timer.js", namesrv)
    assert "pay up" in output(["node", "first_timer.js"], tmp_path, NODE_PATH=str(compat.node.run.install()))
