"""The package as pip installs it: its metadata, and its build from the files that the images copy."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
from trove_classifiers import classifiers

from tests.deploy.files import ROOT
from tests.docs.test_links import links

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CLIENT = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
CONTEXT = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]


def build(source: Path, kind: str, target: Path) -> Path:
    words = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    done = subprocess.run(words, cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    [built] = target.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel, built from the files that the Dockerfile copies."""
    source = tmp_path_factory.mktemp("context")
    for name in CONTEXT:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    return zipfile.ZipFile(build(source, "wheel", tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return message_from_string(wheel.read(name).decode())


def test_a_wheel_has_the_package_and_its_licence(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "wheelmq/cli/up.py" in names and "wheelmq/client/__init__.py" not in names
    assert {Path(name).name for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}
    assert {name.partition("/")[0] for name in names} == {
        "wheelmq",
        "pyspark_rocketmq",
        f"wheelmq-{PROJECT['version']}.dist-info",
    }


def test_the_classifiers_exist(metadata: Message) -> None:
    found = metadata.get_all("Classifier") or []
    assert found and set(found) <= classifiers
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {lowest}" in found


def test_the_classifiers_of_the_client_exist() -> None:
    assert set(CLIENT["classifiers"]) <= classifiers
    assert f"Programming Language :: Python :: {CLIENT['requires-python'].removeprefix('>=')}" in CLIENT["classifiers"]
    assert links(ROOT / "client" / CLIENT["readme"]) == []


def test_the_description_has_no_link_into_the_repository(metadata: Message) -> None:
    page = ROOT / PROJECT["readme"]
    assert metadata.get_payload() == page.read_text()
    assert links(page) == []
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_the_support_matrix_names_each_python_of_the_classifiers() -> None:
    found = [*PROJECT["classifiers"], *CLIENT["classifiers"]]
    versions = {text.rpartition(" ")[2] for text in found if re.search(r"Python :: 3\.\d", text)}
    matrix = (ROOT / "docs" / "support.md").read_text()
    assert {version for version in versions if f"| Python {version} |" not in matrix} == set()


def test_a_source_archive_has_the_documentation(tmp_path: Path) -> None:
    with tarfile.open(build(ROOT, "sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "CHANGELOG.md", "docs/README.md", "deploy/compose.yaml", "requirements/broker.txt"} <= names
    assert not any(name.startswith((".git/", ".ci", ".venv")) for name in names)


def test_each_command_of_the_release_check_list_exists() -> None:
    """The packages come from the locked build tool. A module that no requirement has cannot build them."""
    text = (ROOT / "docs" / "release.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"`make ([a-z-]+)", text)
    assert "packages" in targets
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []
    modules = re.findall(r"python -m ([\w.]+)", text + re.findall(r"^packages:.*\n(?:\t.*\n)+", makefile, re.M)[0])
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []
