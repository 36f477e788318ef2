"""The man page and the completion scripts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from wheelmq.cli import COMMANDS, main


def page() -> str:
    result = CliRunner().invoke(main, ["man"])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_man_page_has_each_command_and_option() -> None:
    plain = page().replace("\\-", "-")
    for name in COMMANDS:
        assert f'.SS "wheelmq {name} ' in plain, name
        command = main.get_command(click.Context(main), name)
        assert command is not None
        shown = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
        hidden = {
            option for parameter in command.params if getattr(parameter, "hidden", False) for option in parameter.opts
        }
        assert [option for option in shown if option not in plain and option not in hidden] == []
    assert '.SS "wheelmq dead-letters resend ' in plain and '.SS "wheelmq admin topicStatus ' in plain
    assert ".B WHEELMQ_NAMESRV" in plain and ".SH EXIT STATUS" in plain
    assert ".B 3\nsend: all messages are stored, some of them less safely than requested.\n" in plain


def test_the_man_page_is_valid_roff() -> None:
    """Each request is one that man(7) has. A line of text never begins with a control character."""
    for line in page().splitlines():
        if line.startswith((".", "'")):
            assert re.match(r"\.(TH|SH|SS|PP|TP|B|RI|nf|fi)\b", line), line
    groff = shutil.which("groff")
    if groff is not None:
        done = subprocess.run(
            [groff, "-man", "-Tascii", "-ww"], input=page(), capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(shell: str) -> None:
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("click asks bash for its version")
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0 and "_WHEELMQ_COMPLETE" in result.output


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("wheelmq ti", {"timers", "timer-counts"}),
        ("wheelmq dead-letters re", {"resend"}),
        ("wheelmq admin topicS", {"topicStatus"}),
        ("wheelmq lag --gr", {"--group"}),
    ],
)
def test_a_shell_completes_commands_and_options(typed: str, found: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from wheelmq.cli import main; main(prog_name='wheelmq')"],  # as the script does
        env={
            "_WHEELMQ_COMPLETE": "bash_complete",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(len(typed.split()) - 1),
            "PYTHONPATH": ":".join(filter(None, sys.path)),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert {line.partition(",")[2] for line in done.stdout.splitlines()} == found, done.stderr
