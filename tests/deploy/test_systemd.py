"""The units for systemd."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY, METRICS_PORT, parsed, settings_in, tool, unit_values, units
from wheelmq.net.managed_process import CANNOT_START

PROGRAM = "/opt/wheelmq/bin/wheelmq"
CONFIG = DEPLOY / "systemd" / "wheelmq.toml"


def words_of(unit: Path) -> list[str]:
    [line] = unit_values(unit, "ExecStart")
    program, *words = shlex.split(line)
    assert program == PROGRAM
    return words


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """The check needs an existing program, so the copies name this Python."""
    for unit in units():
        (tmp_path / unit.name).write_text(unit.read_text().replace(PROGRAM, sys.executable))
    words = (tool("systemd-analyze"), "verify", "--man=no", *(str(tmp_path / unit.name) for unit in units()))
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    own = [line for line in done.stderr.splitlines() if "wheelmq" in line]
    assert (done.returncode, own) == (0, []), done.stderr


def test_there_is_a_unit_for_each_part() -> None:
    assert [words_of(unit)[0] for unit in units()] == ["broker", "nameserver", "pipeline", "ship"]


@pytest.mark.parametrize("unit", units(), ids=lambda unit: unit.stem)
def test_a_command_and_its_settings_exist(unit: Path) -> None:
    command, options = parsed(words_of(unit))
    if command in ("pipeline", "ship"):
        [home] = [parsed(words_of(other))[1]["home"] for other in units() if other.stem == "wheelmq-broker"]
        if command == "ship":
            assert options["home"] == home
        else:
            assert options["credentials"] == home / "store" / "config" / "pipelineKey.json"
        return
    assert options["file"] == Path("/etc/wheelmq/wheelmq.toml")
    settings = settings_in(command, options, CONFIG)
    if command == "broker":
        assert settings.metrics.exporter == "PROM" and settings.metrics.prom_port == METRICS_PORT


@pytest.mark.parametrize("unit", units(), ids=lambda unit: unit.stem)
def test_a_unit_waits_for_the_report_of_its_part(unit: Path) -> None:
    """`wheelmq ship` does not report."""
    assert unit_values(unit, "Type") == ["exec" if unit.stem == "wheelmq-ship" else "notify"]
    assert unit_values(unit, "RestartPreventExitStatus") == [str(CANNOT_START)]


def test_the_shipper_may_write_to_its_target() -> None:
    [unit] = [unit for unit in units() if unit.stem == "wheelmq-ship"]
    _, options = parsed(words_of(unit))
    [mount] = unit_values(unit, "RequiresMountsFor")
    assert unit_values(unit, "ReadWritePaths") == [mount]
    assert Path(mount) in Path(options["target"]).parents


@pytest.mark.parametrize("unit", units(), ids=lambda unit: unit.stem)
def test_a_part_may_write_to_its_home(unit: Path) -> None:
    _, options = parsed(words_of(unit))
    [state] = unit_values(unit, "StateDirectory")
    assert options["home"] == Path("/var/lib") / state
    assert unit_values(unit, "WorkingDirectory") == [str(options["home"])]


def test_the_settings_of_the_comments_exist(tmp_path: Path) -> None:
    """The commented lines are settings too."""
    text = CONFIG.read_text().replace("# ip", "ip")
    config = tmp_path / "wheelmq.toml"
    config.write_text(text)
    command, options = parsed(words_of(units()[0]))
    assert settings_in(command, options, config).broker.ip == "10.0.0.7"
