"""A wheel of the repository runs in an environment with its declared dependencies and two extras alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.running import COMMAND_DEADLINE_S, SMALL, START_DEADLINE_S, STOP_DEADLINE_S

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")

IMPORT_ALL = """
import importlib, pkgutil, wheelmq
for found in pkgutil.walk_packages(wheelmq.__path__, "wheelmq."):
    if not found.name.endswith(("__main__", "pytest_plugin")):
        importlib.import_module(found.name)
print(wheelmq.__file__)
"""
EXTRAS = ({"extra": "spark"}, {"extra": "opentelemetry"})
SEND_AND_RECEIVE = """
import sys
from wheelmq.client import SyncProducer, SyncPullConsumer
with SyncProducer(sys.argv[1]) as producer, SyncPullConsumer(sys.argv[1], "group") as consumer:
    sent = producer.send("Orders", b"pay up", delay_ms=500)
    consumer.subscribe("Orders")
    while not (messages := consumer.poll(timeout_ms=1000)):
        pass
    print(messages[0].body.decode(), messages[0].unique_key == sent.unique_key, messages[0].stored_ms >= sent.due_ms)
"""


def run(*command: str | Path) -> str:
    """Return the output of a command that must succeed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_DEADLINE_S, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment() -> dict[str, str]:
    """Return the environment without any path to the modules of the checkout."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, "WHEELMQ_KERNELS": "plain"}


def required_by(wheel: Distribution) -> dict[str, Distribution]:
    """Return the distributions that a wheel with its extras requires, directly or not, as they are installed here.

    The client is missing: it is built from the repository too.
    """
    found: dict[str, Distribution] = {}
    waiting = list(wheel.requires or ())
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if (
            name == "wheelmq-client"
            or name in found
            or (requirement.marker is not None and not any(map(requirement.marker.evaluate, EXTRAS)))
        ):
            continue
        found[name] = installed = distribution(name)
        assert requirement.specifier.contains(installed.version, prereleases=True), (
            f"{requirement}: {installed.version}"
        )
        waiting += installed.requires or ()
    return found


def link(packages: dict[str, Distribution], site: Path) -> None:
    """Link the files of installed distributions into another site folder; nothing is copied or downloaded."""
    for package in packages.values():
        for top in {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "__pycache__")}:
            target = Path(str(package.locate_file(top)))
            if target.exists() and not (site / top).exists():
                (site / top).symlink_to(target)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both wheels, install them into a new environment, and return the folder of their programs."""
    folder = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder, ROOT, ROOT / "client")
    wheels = sorted(folder.glob("*.whl"))
    assert len(wheels) == 2
    venv.create(folder / "clean", with_pip=False, symlinks=True)
    programs = folder / "clean" / "bin"
    run(*PIP, "--python", programs / "python", "install", "--no-deps", "--no-index", *wheels)
    [site] = (folder / "clean" / "lib").glob("python*/site-packages")
    [made] = distributions(name="wheelmq", path=[str(site)])
    link(required_by(made), site)
    return programs


def test_each_module_of_the_wheel_finds_its_imports(installed: Path) -> None:
    found = run(installed / "python", "-P", "-c", IMPORT_ALL)
    assert Path(found.strip()).is_relative_to(installed.parent)


@pytest.mark.timeout(START_DEADLINE_S + COMMAND_DEADLINE_S)
def test_the_installed_wheel_delivers_a_delayed_message(installed: Path, tmp_path: Path) -> None:
    options = ("--home", str(tmp_path / "home"), "--no-pipeline", "--json")
    ports = ("--namesrv-port=0", "--broker-port=0")
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(
            [str(installed / "wheelmq"), "up", *options, *ports, *SMALL],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment(),
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (tmp_path / "errors").read_text()
        found = run(installed / "python", "-P", "-c", SEND_AND_RECEIVE, json.loads(line)["namesrv"])
        assert found.split() == ["pay", "up", "True", "True"]
    finally:
        process.terminate()
        assert process.wait(STOP_DEADLINE_S) == 0
