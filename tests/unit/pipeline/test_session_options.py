"""The options for Spark of `wheelmq pipeline` reach the driver, and wrong ones are rejected."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from wheelmq.cli import main
from wheelmq.pipeline.session_options import SessionOptions
from wheelmq.pipeline.supervisor import driver_command

GIVEN = SessionOptions(("spark.ui.port=4050", "spark.wheelmq.odd=a=b"), "2g", ui=True)


def test_the_driver_gets_the_options() -> None:
    command = driver_command(["b:1"], name="p", master=None, log_dir=Path("logs"), session_options=GIVEN)
    words = ["--conf", "spark.ui.port=4050", "--conf", "spark.wheelmq.odd=a=b", "--driver-memory", "2g", "--ui"]
    at = command.index("--conf")
    assert command[at : at + len(words)] == words == GIVEN.words()


def test_the_session_gets_the_settings() -> None:
    settings = GIVEN.settings()
    assert settings["spark.ui.port"] == "4050" and settings["spark.wheelmq.odd"] == "a=b"
    assert settings["spark.ui.enabled"] == settings["spark.sql.streaming.ui.enabled"] == "true"
    assert SessionOptions(("spark.ui.enabled=false",), ui=True).settings()["spark.ui.enabled"] == "false"
    assert SessionOptions().settings() == {} and SessionOptions().words() == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--conf", "spark.a"], "write it as spark.NAME=VALUE"),
        (["--conf", "a=b"], "write it as spark.NAME=VALUE"),
        (["--conf", "spark.master=local"], "use --master"),
        (["--conf", "spark.driver.memory=2g"], "use --driver-memory"),
        (["--driver-memory", "2 GB"], "write it as 512m or 2g"),
    ],
)
def test_wrong_options_are_rejected_before_spark_starts(words: list[str], text: str) -> None:
    result = CliRunner().invoke(main, ["pipeline", "--broker", "127.0.0.1:1", *words])
    assert result.exit_code == 2 and text in result.output
