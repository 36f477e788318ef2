"""The examples of the page on the command line run, and print the output on the page."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from compat.client.servers import ours
from tests.docs.command_line import PAGE, with_rows
from wheelmq.cli import main
from wheelmq.cli.admin import command as admin

TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
EXAMPLES = [example for block in BLOCKS for example in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)]
COMMAND_DEADLINE_S = 60


def matches(printed: str, expected: str) -> bool:
    """Return whether an output is that of the page, where … matches any text. Blanks and empty lines do not count."""
    lines = [" ".join(line.split()) for line in expected.splitlines() if line.strip()]
    pattern = r"\n".join(".*".join(map(re.escape, line.split("…"))) for line in lines)
    found = "\n".join(" ".join(line.split()) for line in printed.splitlines() if line.strip())
    return re.fullmatch(pattern, found, re.DOTALL) is not None


@pytest.mark.timeout(300)
def test_the_examples_print_the_output_on_the_page(tmp_path: Path) -> None:
    """One shell runs each line, in the order of the page."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "wheelmq"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m wheelmq "$@"\n')
    script.chmod(0o755)
    with ours(tmp_path / "servers", names=("broker-a",)) as cluster:
        environment = os.environ | {
            "PATH": f"{script.parent}:{os.environ['PATH']}",
            "WHEELMQ_NAMESRV": cluster.namesrv,
            "PYTHONPATH": ":".join(filter(None, sys.path)),
        }
        for typed, expected in EXAMPLES:
            done = subprocess.run(
                typed, shell=True, capture_output=True, text=True, env=environment, timeout=COMMAND_DEADLINE_S
            )
            assert done.returncode == 0, (typed, done.stdout, done.stderr)
            assert matches(done.stdout, expected), (typed, done.stdout)


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) >= 10
    assert {shlex.split(typed.rpartition("| ")[2])[1] for typed, _ in EXAMPLES} >= {"send", "topics", "lag", "admin"}


def test_the_table_of_json_shapes_is_current() -> None:
    assert with_rows(TEXT) == TEXT, "run python -m tests.docs.command_line"


def test_each_command_and_option_on_the_page_exists() -> None:
    table = TEXT.partition("<!-- admin -->")[2].partition("<!-- end -->")[0]
    assert set(re.findall(r"`(\w+)`", table)) == set(admin.commands)
    context = click.Context(main)
    options = {"--help"}
    for name in main.list_commands(context):
        found = main.get_command(context, name)
        assert found is not None
        inner = found.commands.values() if isinstance(found, click.Group) else [found]
        options |= {option for one in inner for parameter in one.params for option in parameter.opts}
    assert set(re.findall(r"--[a-z][a-z-]+", TEXT)) <= options
