"""`wheelmq-client` alone, beside the broker's wheel, and after it: files, size, and a timer from end to end."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.files import ROOT
from tests.deploy.test_image_packages import part
from tests.deploy.test_package import build
from tests.running import COMMAND_DEADLINE_S, SMALL

SIZE_BYTES_MAX: Final = 3_000_000
"""The installed size of the client with its dependencies."""
USE: Final = """
import asyncio, importlib.util, json, sys, time
from wheelmq.client import Consumed, Producer, PushConsumer

heavy = [name for name in ("numpy", "numba", "pyspark", "click", "wheelmq.broker") if importlib.util.find_spec(name)]

async def main():
    arrived = asyncio.Queue()

    async def callback(message):
        arrived.put_nowait((message.body.decode(), time.time() * 1000))
        return Consumed.DONE

    consumer = PushConsumer(sys.argv[1], "billing")
    consumer.subscribe("Bills", callback)
    async with Producer(sys.argv[1]) as producer:
        due = await producer.send("Bills", b"pay up", delay_ms=700)
        other = await producer.send("Bills", b"not this", delay_ms=900)
        cancelled = await producer.cancel("Bills", other.unique_key, other.due_ms)
        async with consumer:
            body, at_ms = await asyncio.wait_for(arrived.get(), 60)
    return {"body": body, "late_ms": at_ms - due.due_ms, "cancelled": cancelled, "heavy": heavy}

print(json.dumps(asyncio.run(main())))
"""


class Environment:
    """A new environment without packages. It gets wheels, and packages of this one."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
        self.python = folder / "bin" / "python"
        [self._site] = folder.glob("lib/python*/site-packages")

    def pip(self, *words: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_DEADLINE_S)
        assert done.returncode == 0, done.stderr

    def install(self, *wheels: Path) -> None:
        self.pip("install", "--no-deps", "--no-index", *map(str, wheels))

    def copy(self, name: str) -> None:
        """Copy a package of this environment, because a test has no package index."""
        here = Path(sysconfig.get_path("purelib"))
        for file in importlib.metadata.files(name) or ():
            if ".." not in file.parts:
                (self._site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(here / file, self._site / file)

    def run(self, code: str, *words: str) -> str:
        command = [str(self.python), "-I", "-c", code, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_DEADLINE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def files(self) -> set[str]:
        return {path.relative_to(self._site).as_posix() for path in self._site.rglob("wheelmq/**/*.py")}

    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._site.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheels of the client and of the broker."""
    client = build(ROOT / "client", "wheel", tmp_path_factory.mktemp("client"))
    return client, build(ROOT, "wheel", tmp_path_factory.mktemp("broker"))


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "environment")


def names(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}


def test_each_file_belongs_to_one_wheel(wheels: tuple[Path, Path]) -> None:
    client, broker = map(names, wheels)
    assert client & broker == set()
    modules = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert {name for name in client | broker if name.endswith(".py")} == modules
    assert "wheelmq/__init__.py" in client and "wheelmq/py.typed" in client


def test_the_client_is_a_pure_wheel(wheels: tuple[Path, Path]) -> None:
    assert wheels[0].name.endswith("-py3-none-any.whl")


def test_the_source_archive_of_the_client_builds_the_same_wheel(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    archive = build(ROOT / "client", "sdist", tmp_path / "archive")
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    [source] = (tmp_path / "unpacked").iterdir()
    assert names(build(source, "wheel", tmp_path / "again")) == names(wheels[0])


def test_the_client_alone_sends_and_consumes_a_timer(
    wheels: tuple[Path, Path], environment: Environment, tmp_path: Path
) -> None:
    environment.install(wheels[0])
    environment.copy("msgspec")
    assert environment.size_bytes() < SIZE_BYTES_MAX
    home = ("--home", str(tmp_path))
    with (
        part("nameserver", *home, "--port", "0") as names,
        part("broker", *home, "--port", "0", "--namesrv", names["address"], *SMALL),
    ):
        found = json.loads(environment.run(USE, names["address"]))
    assert (found["body"], found["cancelled"], found["heavy"]) == ("pay up", "cancelled", [])
    assert found["late_ms"] >= 0


def test_the_broker_adds_its_files_and_an_uninstall_removes_them(
    wheels: tuple[Path, Path], environment: Environment
) -> None:
    environment.copy("msgspec")
    environment.install(wheels[0])
    alone = environment.files()
    environment.install(*wheels)
    assert alone < environment.files()
    assert environment.run("import wheelmq.filter, wheelmq.client; print('both')") == "both\n"
    environment.pip("install", "--no-deps", "--no-index", "--force-reinstall", *map(str, wheels))
    environment.pip("uninstall", "--yes", "wheelmq")
    assert environment.files() == alone
    assert environment.run("import wheelmq.client; print('one')") == "one\n"
