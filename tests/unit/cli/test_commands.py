"""Commands that fail, each with the remedy in its error."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from wheelmq.cli import COMMANDS, main, part
from wheelmq.cli.ports import free_port

HEAVY = ("pyspark", "numba", "numpy", "pyarrow", "rich", "psutil")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_text(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


@pytest.mark.parametrize(
    "code",
    [
        "from wheelmq.cli import main; main(['--help'], standalone_mode=False)",
        "import wheelmq.cli.send, wheelmq.client",
        "import wheelmq.cli.consume",
        "import wheelmq.cli.admin, wheelmq.cli.dead_letters, wheelmq.client.dead_letters",
    ],
)
def test_light_commands_import_no_heavy_modules(code: str) -> None:
    assert imported(code, *HEAVY) == "nothing"


def test_the_settings_of_a_broker_import_no_compiler() -> None:
    parts = "wheelmq.broker.schema, wheelmq.cli.up, wheelmq.cli.stack, wheelmq.dashboard.server, wheelmq.nameserver.app"
    assert imported(f"import {parts}", "numba", "pyspark", "pyarrow") == "nothing", "`wheelmq up` waits for them"


def imported(code: str, *names: str) -> str:
    """Return which of the modules `names` the code imports."""
    check = f"import sys; sys.stdout = sys.stderr; {code}; print([n for n in {names} if n in sys.modules] or 'nothing')"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["send", "T"], "Missing argument 'BODY'"),
        (["send", "T", "x", "--delay", "10"], "write 10s for seconds"),
        (["send", "T", "x", "--delay", "soon"], "write a number and a unit"),
        (["send", "T", "x", "--delay", "1s", "--at", "+2s"], "give one of them"),
        (["send", "T", "x", "--delay", "1s", "--delay-in-seconds", "1"], "give one of them"),
        (["send", "T", "x", "--delay-in-seconds", "-1"], "is no whole number of seconds"),
        (["send", "T", "x", "--delay-in-seconds", "soon"], "write 3600 for an hour"),
        (["send", "T", "x", "--at", "someday"], "as in tomorrow or monday 09:00; or ISO 8601"),
        (["send", "T", "x", "--at", "today"], "Leave --at out to deliver at once"),
        (["send", "T", "x", "--at", "00:00"], "or write 'tomorrow 00:00'"),
        (["send", "T", "x", "--at", "2001-01-01T00:00Z"], "in the past"),
        (["send", "T", "x", "--level", "1", "--at", "+1s"], "give one of them"),
        (["send", "T", "x", "--level", "0"], "is not in the range"),
        (["send", "T", ""], "BODY is empty"),
        (["send", "a/b", "x"], "is not a valid topic"),
        (["cancel", "T"], "Missing option '--key'"),
        (["cancel", "T", "--key", "k", "--at", "noon"], "or ISO 8601"),
        (["cancel", "a/b", "--key", "k"], "is not a valid topic"),
        (["timers", "--broker", "here"], "not an address of a broker: write HOST:PORT"),
        (["timers", "--from", "+2h", "--to", "+1h"], "--from must be the earlier one"),
        (["timers", "--key", "k"], "--key needs --topic"),
        (["pipeline", "--broker", "here"], "not an address of a broker: write HOST:PORT"),
        (
            ["consume", "T", "--group", "bad group!"],
            "is not a valid group: the specified group contains illegal characters",
        ),
        (["consume", "T", "--group", "g" * 256], "longer than group max length 255"),
        (["send", "T", "x", "--namesrv", "here:"], "write HOST:PORT"),
        (["consume", "T"], "Missing option '--group'"),
        (["consume", "T", "--group", "g", "--count", "0"], "--count"),
        (["consume", "T", "--group", "g", "--tags", "||"], "has no tags"),
        (["nonsense"], "No such command"),
        (["broker", "--port", "70000"], "--port"),
        (["pipeline"], "name a broker with --broker"),
    ],
)
def test_the_error_of_bad_input_names_a_remedy(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code not in (0, None)
    assert told in result.output


@pytest.mark.parametrize("words", [["--at", "someday"], ["--at", "2001-01-01"], ["--delay", "soon"]])
def test_an_invalid_time_is_a_usage_error(words: list[str]) -> None:
    assert CliRunner().invoke(main, ["send", "T", "x", *words]).exit_code == 2


@pytest.mark.parametrize(
    "command", [["send", "T", "x"], ["consume", "T", "--group", "g"], ["timers"], ["cancel", "T", "--key", "k"]]
)
def test_a_command_without_a_name_server_ends_with_an_error(command: list[str]) -> None:
    result = CliRunner().invoke(main, [*command, "--namesrv", f"127.0.0.1:{free_port()}"])
    assert result.exit_code == 1
    assert "no name server answers" in result.output
    assert "wheelmq up" in result.output


@pytest.mark.parametrize(("name", "option"), [("broker", "--broker-port"), ("nameserver", "--namesrv-port")])
@pytest.mark.parametrize("by_up", [True, False])
def test_a_part_names_the_port_option_of_the_command_that_started_it(
    name: str, option: str, by_up: bool, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        command = [sys.executable, "-m", "wheelmq", name, "--home", str(tmp_path), "--port", port]
        command += ["--ends-with-stdin"] if by_up else []
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdin is not None and process.stderr is not None
        with process.stdin, process.stderr:  # a closed input would end the part
            told = process.stderr.read()
    assert process.wait(60) == 78
    assert told.endswith(f"choose another port with {option if by_up else '--port'}\n")
    assert told.count("choose another port") == 1


@pytest.mark.parametrize(
    ("package", "command"),
    [("numba", "broker"), ("msgspec", "topics"), ("starlette", "up --no-pipeline --namesrv-port 0 --broker-port 0")],
)
def test_an_error_names_a_missing_package_and_the_remedy(package: str, command: str, tmp_path: Path) -> None:
    """`wheelmq up` stops its parts, which run by then."""
    program = f"import sys; sys.modules[{package!r}] = None; from wheelmq.cli import main; main()"
    words = [*command.split(), *(["--home", str(tmp_path)] if command != "topics" else [])]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert done.returncode == 78
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"Error: the package {package} is not installed, and WheelMQ needs it: ")
    assert "clean install" in last and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        ("nonsense=1", "there is no setting 'nonsense'; `wheelmq config keys --ours` lists all"),
        (
            "log_file_bytes=large",
            "--set log_file_bytes: found 'large'; allowed: a whole number from 4096 to 2147483647",
        ),
        ("log_file_bytes", "write NAME=VALUE"),
    ],
)
def test_the_broker_rejects_bad_settings(pair: str, told: str, tmp_path: object) -> None:
    result = CliRunner().invoke(main, ["broker", "--home", str(tmp_path), "--port", "0", "--set", pair])
    assert result.exit_code == 78
    assert told in result.output


def test_up_does_not_wait_for_a_broker_that_rejects_sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "end_with_stdin", lambda: None)
    command = ["broker", "--home", str(tmp_path), "--port", "0", "--set", "broker_id=1", "--ends-with-stdin"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 78
    assert "broker_id=1: a broker with an id other than 0 rejects sends" in result.output
