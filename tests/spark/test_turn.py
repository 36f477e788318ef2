"""The DataFrame operations of a turn match their plain twin and the plan in docs/pipeline.md."""

from __future__ import annotations

import contextlib
import functools
import io
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from wheelmq.delay.timer import staging
from wheelmq.formats.disk.timer import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL
from wheelmq.formats.disk.turn_row import KINDS, STAGED_ROW, TURN_ROW
from wheelmq.spark.columns import ARROW_SCHEMA, SPARK_SCHEMA, to_batch
from wheelmq.spark.turn import decide, decided, group_decided, uploaded
from wheelmq.spark.upload import to_rows

DOCS = Path(__file__).parents[2] / "docs" / "pipeline.md"
WRITE_MS = 1_800_000_000_000


def staged(window_ms: int, precision_ms: int) -> staging.StagedRows:
    """Return rows of each kind, around each bound at which the decision changes."""
    window_slots = window_ms // precision_ms
    bounds = [0, window_slots, window_slots + window_slots // 3, 2 * window_slots, 5 * window_slots]
    offsets_ms = [precision_ms * (bound + by) for bound in bounds for by in (-1, 0, 1)]
    magics = (MAGIC_DEFAULT, MAGIC_DEFAULT | MAGIC_DELETE, MAGIC_DEFAULT | MAGIC_ROLL)
    cases = list(product(range(len(KINDS)), offsets_ms, (1, precision_ms), magics))
    rows = np.zeros(len(cases), STAGED_ROW)
    for row, (kind, offset_ms, behind_ms, magic) in zip(rows, cases, strict=True):
        row["kind"], row["magic"] = kind, magic
        row["out_ms"] = WRITE_MS + offset_ms
        row["due_ms"] = row["out_ms"] + behind_ms
    many = np.arange(len(rows))
    rows["write_ms"], rows["turn"] = WRITE_MS, 7
    rows["store_ms"] = WRITE_MS - 90_000 + many
    rows["origin"] = (3 << 60) + 7 * (len(rows) - many)
    rows["position"], rows["size"], rows["topic_hash"] = 300 * many, 200 + many, -5 * many
    return rows


def frame(spark: SparkSession, rows: staging.StagedRows) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_batches([to_batch(rows)], ARROW_SCHEMA))


@pytest.mark.spark
@pytest.mark.parametrize(("window_slots", "precision_ms"), [(172_800, 1000), (20, 500), (7, 200), (2, 100)])
def test_dataframe_operations_decide_as_the_plain_twin(
    spark: SparkSession, window_slots: int, precision_ms: int
) -> None:
    window_ms = window_slots * precision_ms
    rows = staged(window_ms, precision_ms)
    made: Any = to_rows(decide(frame(spark, rows), window_ms, precision_ms).toArrow())
    expected = staging.decide(rows, window_ms, precision_ms)
    assert len(made) == len(rows)
    for name in TURN_ROW.names or ():
        assert np.array_equal(made[name], expected[name]), name
    assert 0 < np.count_nonzero(expected["magic"] & MAGIC_ROLL) < len(rows)


@pytest.mark.spark
def test_the_brokers_of_a_group_may_have_different_windows(spark: SparkSession) -> None:
    """Each row is decided by the roll window and the precision of its own broker."""
    settings = [(172_800, 1000), (20, 500), (7, 200), (2, 100)]
    parts, expected = [], []
    for member, (slots, precision_ms) in enumerate(settings):
        rows = staged(slots * precision_ms, precision_ms)
        columns = {"window_ms": slots * precision_ms, "precision_ms": precision_ms, "problem": None}
        expected.append(staging.decide(rows, slots * precision_ms, precision_ms))
        more = {name: F.lit(value).cast("long") for name, value in columns.items()}
        parts.append(frame(spark, rows).withColumns({**more, "member": F.lit(member).cast("int")}))
    decided_rows = group_decided(functools.reduce(DataFrame.unionByName, parts))
    for member, twin in enumerate(expected):
        made: Any = to_rows(decided_rows.where(F.col("member") == member).toArrow())
        for name in TURN_ROW.names or ():
            assert np.array_equal(made[name], twin[name]), (member, name)


@pytest.mark.spark
def test_the_plan_of_a_turn_is_the_documented_one(spark: SparkSession) -> None:
    """No row is shuffled: the plan has two projections of generated code, then the upload."""
    terms = {"precision_ms": 1000, "roll_window_slots": 172_800, "epoch": 1, "token": "a token"}
    rows = spark.createDataFrame(spark.sparkContext.emptyRDD(), SPARK_SCHEMA)
    turn = uploaded(decided(rows, terms), "127.0.0.1:1", terms)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        turn.explain(mode="formatted")
    text = said.getvalue()
    plan = text[text.index("MapInArrow") :].split("\n\n")[0]
    shown = DOCS.read_text().split("```")[1]
    steps = re.compile(r"MapInArrow|Project|Scan|Exchange|Sort|Aggregate|Join")
    assert steps.findall(plan) == steps.findall(shown) == ["MapInArrow", "Project", "Project", "Scan"], text
    assert plan.count("* Project") == shown.count("* Project") == 2, text
    told = " ".join(text.split())
    for word in ("172800000", "57600000", "86400000"):
        assert word in told and word in DOCS.read_text(), text
