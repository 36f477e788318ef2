"""The common code of the client suites: it reads lines, runs programs and reports missing tools."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import compat.cpp.run
import compat.go.run
import compat.java.run
import compat.node.run
from compat.suite import Asked, CaseResult, Program, SuiteError, result_of, run_program, tools_found

LINE = '{"case":"Timer.delayMs","outcome":"%s","seconds":1.4,"reason":"","measures":{"lateness_ms":3}}'


def printing_program(text: str, code: int = 0) -> Program:
    return Program([sys.executable, "-c", f"import os\nprint({text!r})\nraise SystemExit({code})"])


def test_a_line_is_parsed_as_a_case() -> None:
    result = result_of(LINE % "passed")
    assert result == CaseResult("Timer.delayMs", "passed", 1.4, "", {"lateness_ms": 3.0})
    assert str(result) == "passed    1.40 s  Timer.delayMs  lateness_ms 3"


def test_a_reason_is_printed_on_one_line() -> None:
    assert str(CaseResult("Send.sync", "failed", 0.0, "one\n  two", {})) == "failed    0.00 s  Send.sync  one two"


@pytest.mark.parametrize("line", ['{"case":"x"}', '{"case":'])
def test_an_invalid_line_is_an_error(line: str) -> None:
    with pytest.raises((KeyError, json.JSONDecodeError)):
        result_of(line)


def test_results_are_reported_and_a_passed_run_leaves_no_folder(tmp_path: Path) -> None:
    heard: list[CaseResult] = []
    results = run_program(printing_program(f"said\n{LINE % 'passed'}"), tmp_path / "home", heard.append)
    assert [result.outcome for result in results] == ["passed"]
    assert heard == results
    assert not (tmp_path / "home").exists()


def test_the_folder_stays_after_a_failure(tmp_path: Path) -> None:
    results = run_program(printing_program(LINE % "failed", code=1), tmp_path / "home")
    assert [result.failed for result in results] == [True]
    assert (tmp_path / "home" / "stderr.log").exists()


@pytest.mark.parametrize("program", [printing_program("nothing"), printing_program(LINE % "passed", code=2)])
def test_a_program_that_breaks_is_an_error(program: Program, tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"ended with code \d after \d cases"):
        run_program(program, tmp_path / "home")


def test_the_options_reach_the_program_by_the_environment(tmp_path: Path) -> None:
    asked = Asked("127.0.0.1:1", fast=True, max_lateness_ms=7, only="Timer")
    assert asked.environment(tmp_path) == {
        "COMPAT_NAMESRV": "127.0.0.1:1",
        "COMPAT_FAST": "1",
        "COMPAT_LATENESS_MAX_MS": "7",
        "COMPAT_ONLY": "Timer",
        "HOME": str(tmp_path),
    }


def test_missing_tools_are_named() -> None:
    assert tools_found("sh") is None
    assert tools_found("sh", "no-such-tool") == "not on the PATH: no-such-tool"


@pytest.mark.parametrize(("suite", "skip", "code"), [("go", [], 2), ("go", ["--skip"], 0), ("node", ["--skip"], 0)])
def test_a_suite_reports_its_missing_tools(
    suite: str, skip: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    main = {"go": compat.go.run.main, "node": compat.node.run.main}[suite]
    assert main(["--target", "127.0.0.1:1", *skip]) == code
    assert "cannot run: not on the PATH" in capsys.readouterr().err


def test_the_library_is_for_one_kind_of_machine() -> None:
    assert compat.cpp.run.wheel_fits("Linux", "x86_64") is None
    assert compat.cpp.run.wheel_fits("Darwin", "arm64") == "the library is for Linux on x86_64, not Darwin on arm64"


def test_each_version_of_the_java_client_is_built_apart() -> None:
    first, other = (compat.java.run.project(client) for client in compat.java.run.CLIENTS)
    assert (first.target.name, other.target.name) == ("target", "5.4.0")
    assert dict(other.properties) == {"rocketmq.version": "5.4.0", "suite.target": "target/5.4.0"}


def test_the_lock_file_names_no_registry() -> None:
    lock = json.loads((compat.node.run.FOLDER / "package-lock.json").read_text())
    pinned = [entry for name, entry in lock["packages"].items() if name]
    assert all("resolved" not in entry and entry["integrity"].startswith("sha512-") for entry in pinned)
    assert len(pinned) > 40
