"""`wheelmq config`, and parts that start with a file of settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from wheelmq.cli import main
from wheelmq.net.managed_process import CANNOT_START


def run(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


def check(file: Path, text: str, *options: str) -> Result:
    file.write_text(text)
    return run("config", "check", file, *options)


def test_check_lists_the_effective_settings_of_apaches_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    result = check(file, "brokerName = b\nbrokerIP1=127.0.0.1\nbindAddress=127.0.0.1\nsampleSteps=7\nnoSuch=1\n")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "broker: 3 settings are given",
        f"  broker_ip = 127.0.0.1   ({file}, line 2: brokerIP1)",
        f"  broker_name = b   ({file}, line 1: brokerName)",
        f"  listen_host = 127.0.0.1   ({file}, line 3: bindAddress)",
        f"  ! {file}, line 4: sampleSteps=7 has no effect: belongs to statistics that are not kept",
        f"  ! {file}, line 5: noSuch is no key of Apache RocketMQ 5.3.3: it is ignored",
    ]


def test_the_error_suggests_check_for_a_file_without_a_command(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=b\n")
    told = run("config", file)
    assert told.exit_code == 2 and f"`wheelmq config check {file}`" in told.output
    assert "No such command" in run("config", "chek").output


def test_check_finds_the_part_that_a_file_belongs_to(tmp_path: Path) -> None:
    text = "listenPort=9877\nkvConfigPath=/x\nbindAddress=127.0.0.1\n"
    assert check(tmp_path / "n.conf", text).output.startswith("nameserver: 3 settings")
    told = check(tmp_path / "n.conf", text, "--part", "broker").output
    assert told.startswith("broker: 2 settings") and "kvConfigPath is no key of" not in told.splitlines()[0]
    both = check(tmp_path / "w.toml", "[broker]\nname = 'b'\n[nameserver]\nlisten_port = 1\n").output
    assert "broker: 1 setting is given\n  broker_name = b" in both
    assert "nameserver: 1 setting is given\n  listen_port = 1" in both


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "b.conf",
            "aclEnable=true\n",
            "line 1: aclEnable: true is refused: the access lists of RocketMQ 4 are not read",
        ),
        ("b.conf", "a=\\u1\n", "b.conf, line 1: \\u1: write \\u and four hexadecimal digits"),
        ("b.conf", "timerPrecisionMs=300\n", "line 1: timerPrecisionMs: timer_precision_ms is 300: it must be one of"),
        ("b.conf", "brokerIP1=here\n", "line 1: brokerIP1: broker_ip is 'here': it must be an IPv4 address"),
        ("b.conf", "namesrvAddr=here\n", "line 1: namesrvAddr: namesrv has 'here': write HOST:PORT"),
        ("b.conf", "namesrvAddr=a..b:9876\n", "namesrvAddr: namesrv has 'a..b:9876': write HOST:PORT"),
        ("w.toml", "[broker]\nlisten_port = -1\n", "[broker] listen_port: found -1; allowed: a whole number from 0 to"),
    ],
)
def test_check_rejects_an_invalid_file(tmp_path: Path, name: str, text: str, told: str) -> None:
    result = check(tmp_path / name, text)
    assert result.exit_code == 1 and told in result.output


def test_check_lists_all_problems_of_a_file(tmp_path: Path) -> None:
    """One key has no number, one is refused, two have values that are not allowed, two lines have a wrong escape."""
    text = """
        listenPort=abc
        aclEnable=true
        flushDiskType=SOMETIMES
        timerPrecisionMs=0
        deleteWhen=31
        brokerName=\\u12
        namesrvAddr=\\uzzzz
    """
    result = check(tmp_path / "b.conf", text)
    assert result.exit_code == 1
    assert sorted(int(line.split("line ")[1].partition(":")[0]) for line in result.output.splitlines()) == [
        *range(2, 9)
    ]


@pytest.mark.parametrize("part", ["broker", "nameserver"])
def test_a_part_does_not_start_with_an_invalid_file(tmp_path: Path, part: str) -> None:
    file = tmp_path / "x.conf"
    file.write_text("listenPort=many\n")
    result = run(part, "-c", file, "--home", tmp_path)
    assert result.exit_code == CANNOT_START
    assert f"{file}, line 1: listenPort: found 'many'; allowed: a whole number of 32 bits" in result.output
    assert "none.conf cannot be read: No such file" in run(part, "-c", tmp_path / "none.conf").output


def test_the_schema_is_json() -> None:
    assert json.loads(run("config", "schema").output)["$defs"]["timer"]["properties"]["precision_ms"]["default"] == 1000


def test_keys_prints_the_tables_of_settings() -> None:
    assert "| duplicationEnable | boolean | | false | refused | |" in run("config", "keys").output
    assert "| `[timer]` | `precision_ms` |" in run("config", "keys", "--ours").output
    assert "| kvConfigPath |" in run("config", "keys", "--part", "nameserver").output
