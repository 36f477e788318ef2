"""The commands, times and settings of the README are valid."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from wheelmq.broker.schema import BROKER
from wheelmq.broker.settings import BrokerSettings
from wheelmq.cli import main
from wheelmq.cli.times import parse_time
from wheelmq.config.schema import Given
from wheelmq.config.sources import read_pairs
from wheelmq.formats.units import Millis

README = (Path(__file__).parents[2] / "README.md").read_text()
TYPED = [line[2:] for line in README.splitlines() if line.startswith("$ wheelmq ")]
SETTINGS = re.findall(r"--set (\w+)=([^\s`]+)", README)


@pytest.mark.parametrize("line", TYPED)
def test_a_command_line_of_the_readme_parses(line: str) -> None:
    """The text after two blanks describes the command. It may name more options."""
    typed, _, told = line.partition("  ")
    name, *arguments = shlex.split(typed)[1:]
    command = main.get_command(click.Context(main), name)
    assert command is not None
    if name != "dump":  # it needs an existing file
        command.make_context(name, list(arguments))
    options = {option for parameter in command.params for option in parameter.opts}
    assert set(re.findall(r"--[\w-]+", told)) <= options


def test_the_due_times_of_the_readme_are_within_the_limit() -> None:
    ahead_max_ms = BrokerSettings.of(store_path=Path()).timer.max_delay_seconds * 1000
    told = [text.rstrip(",.:") for text in re.findall(r"--at (\S*\d\S*)", README)]
    assert told
    assert all(parse_time(text, Millis(0)) <= ahead_max_ms for text in told), told
    assert f"{ahead_max_ms // 86_400_000} days ahead" in README


def test_the_settings_of_the_readme_exist() -> None:
    assert {name for name, _ in SETTINGS} >= {"timer_max_delay_seconds", "allow_unauthenticated"}
    for name, value in SETTINGS:
        reading = read_pairs({name: value}, BROKER)
        assert reading.given, name
        BROKER.build({"store_path": Given(Path(), "the test")} | reading.given)


def test_only_measured_brokers_are_compared() -> None:
    """A claim about all brokers needs a measurement of all brokers."""
    text = README.lower()
    assert "any broker" not in text and "any other broker" not in text
    assert all(word in text for word in ("grpc", "enablepropertyfilter", "timerprecisionms", "two cores"))
