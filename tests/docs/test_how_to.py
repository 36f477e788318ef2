"""The how-to pages: their commands parse, their settings exist, and their programs in Python run."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from compat.client.servers import Cluster, ours
from wheelmq.broker.schema import BROKER
from wheelmq.cli import main
from wheelmq.config.schema import Given
from wheelmq.config.sources import read_pairs

FOLDER = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = {page.stem: page.read_text() for page in sorted(FOLDER.glob("*.md"))}
LINES = sorted(
    {
        (name, line.strip())
        for name, page in PAGES.items()
        for block in re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        for line in re.findall(r"[$#] (?:\S+/)?(wheelmq .*)", block.replace("\\\n", " "))
    }
)
QUOTED = sorted({(name, text) for name, page in PAGES.items() for text in re.findall(r"`(wheelmq [^`]*)`", page)})
SETTINGS = sorted(
    {
        (name, *pair)
        for name, page in PAGES.items()
        for pair in re.findall(r"`(?:[\w -]*--set )?([a-z][a-zA-Z_]+)=([\w.]+)`", page)
    }
)


@pytest.mark.parametrize(("page", "line"), [*LINES, *QUOTED])
def test_a_command_line_parses(page: str, line: str) -> None:
    """A text after two blanks describes the command."""
    words = shlex.split(re.split(r"  +(?=[a-zA-Z])(?!--)", line)[0].partition("  ")[0])[1:]
    if not words or words[0].startswith("-"):
        return
    command = main.get_command(click.Context(main), words[0])
    assert command is not None, words[0]
    if isinstance(command, click.Group):
        assert command.get_command(click.Context(command), words[1]) is not None
        return
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= {*options, "-h", "--help"}


@pytest.mark.parametrize(("page", "name", "value"), SETTINGS)
def test_a_setting_exists(page: str, name: str, value: str) -> None:
    reading = read_pairs({name: value}, BROKER)
    assert reading.given, name
    BROKER.build({"store_path": Given(Path(), "the test")} | reading.given)


def test_the_pages_name_commands_and_settings() -> None:
    assert len(LINES) >= 5 and len(QUOTED) > 10 and len(SETTINGS) > 5


def programs(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ours(tmp_path_factory.mktemp("servers")) as running:
        yield running


@pytest.mark.parametrize(
    "program",
    [*programs("first-timer", "python"), *[one for one in programs("from-rabbitmq", "python") if "wheelmq" in one]],
    ids=["first-timer", "from-rabbitmq"],
)
def test_a_program_in_python_runs(program: str, cluster: Cluster) -> None:
    assert "127.0.0.1:9876" in program
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program.replace("127.0.0.1:9876", cluster.namesrv), "docs/how-to", "exec"), {})
    assert ("pay up" in printed.getvalue().splitlines()) is ("print" in program)


def test_the_example_of_a_test_broker_prints_its_output() -> None:
    [program, _] = programs("test-your-application", "python")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "docs/how-to", "exec"), {})
    assert printed.getvalue().splitlines() == re.findall(r"# > (.*)$", program, re.MULTILINE)
