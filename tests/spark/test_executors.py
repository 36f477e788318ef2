"""The settings of executors in separate processes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from wheelmq.pipeline.app import default_master
from wheelmq.pipeline.executors import MISSING_MODULE, executor_java_home, executor_settings, is_local_cluster
from wheelmq.pipeline.java import JavaRuntime, find_java


def test_an_executor_home_starts_a_java_without_the_module(tmp_path: Path) -> None:
    java = find_java({"PATH": ""})  # the Java of the wheel
    assert MISSING_MODULE not in (java.home / "release").read_text()
    home = executor_java_home(java, tmp_path / "it's a home")
    command = [str(home / "bin" / "java"), "-Da=b c", f"--add-modules={MISSING_MODULE}", "-version"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert subprocess.run([java.java, *command[1:]], capture_output=True).returncode != 0


def test_a_java_with_the_module_is_used_directly(tmp_path: Path) -> None:
    (tmp_path / "release").write_text(f'MODULES="java.base {MISSING_MODULE}"\n')
    java = JavaRuntime(tmp_path, 21, "JAVA_HOME")
    assert executor_java_home(java, tmp_path / "other") == tmp_path
    assert not (tmp_path / "other").exists()


def test_executors_receive_our_environment_variables() -> None:
    given = {"WHEELMQ_KERNELS": "plain", "WHEELMQ_FAILPOINTS": "", "HOME": "/root"}
    assert executor_settings(given) == {"spark.executorEnv.WHEELMQ_KERNELS": "plain"}


@pytest.mark.parametrize(
    ("master", "is_one"), [("local-cluster[2,1,1024]", True), ("local[2]", False), ("spark://h:1", False)]
)
def test_a_local_cluster_master_is_recognized(master: str, is_one: bool) -> None:
    assert is_local_cluster(master) is is_one


@pytest.mark.parametrize(
    ("brokers", "may_grow", "master"),
    [
        (1, False, "local[2,4]"),
        (2, False, "local[8,4]"),
        (5, False, "local[20,4]"),
        (0, True, "local[16,4]"),
        (5, True, "local[20,4]"),
    ],
)
def test_the_default_master_has_room_for_the_tasks_of_all_brokers(brokers: int, may_grow: bool, master: str) -> None:
    assert default_master(brokers, may_grow=may_grow) == master
