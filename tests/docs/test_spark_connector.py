"""The page on the connector names every option and column, and its code is valid."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark_rocketmq.columns import COLUMNS
from pyspark_rocketmq.options import ALL, BATCH, CONNECTION, SINK, STREAM, batch_options, sink_options, stream_options
from pyspark_rocketmq.rows import KINDS

PAGE = (Path(__file__).parents[2] / "docs" / "spark-connector.md").read_text()
BASE = {"namesrvAddr": "127.0.0.1:9876", "topic": "T"}


def first_cells(heading: str) -> set[str]:
    """Return the names in the first column of the tables below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_the_page_names_each_option() -> None:
    shared = first_cells("Options of sources and sinks")
    assert shared == set(CONNECTION)
    assert first_cells("Options of a source") | shared == set(BATCH) | set(STREAM)
    assert first_cells("Columns of a sink") | shared == set(SINK) | set(KINDS)


def test_the_page_names_each_column() -> None:
    assert first_cells("Columns of a source") == set(COLUMNS)


def test_the_options_in_the_code_exist() -> None:
    named = set(re.findall(r'\.option\("(\w+)"', PAGE))
    assert named and named <= {*ALL, "checkpointLocation"}


def test_the_defaults_on_the_page_are_those_of_the_code() -> None:
    stream, batch, sink = stream_options(BASE), batch_options(BASE), sink_options(BASE)
    assert stream.connection.timeout_s == 5 and "default 5000" in PAGE
    assert stream.limits.delay_max_ms == 15 * 60_000 and "default `15 minutes`" in PAGE
    assert sink.body_bytes_max == 4194304 and "default 4194304" in PAGE
    assert (batch.start, stream.start) == (-2, -1) and "`earliest` (default of a batch), `latest` (default of" in PAGE
    assert stream.fails_on_loss and not sink.delivers_past and not stream.commits
