"""One Spark session for the whole run: a JVM takes seconds to start, and PySpark allows one per process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from wheelmq.pipeline.daemon import PRELOAD_VARIABLE
from wheelmq.pipeline.session import CACHE_VARIABLE, close_session, open_session

os.environ.setdefault(CACHE_VARIABLE, "use")  # a test run has no time to make a start-up cache


@pytest.fixture(scope="session")
def spark_log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the logs of the JVM of the session `spark`."""
    return tmp_path_factory.mktemp("spark-log")


@pytest.fixture(scope="session")
def preloaded_hook() -> str:
    """A module that the workers of the session `spark` preload."""
    return "wheelmq.formats.units"


@pytest.fixture(scope="session")
def odd_conf() -> dict[str, str]:
    """Settings of the session `spark` with characters that a properties file must escape."""
    return {
        "spark.wheelmq.odd": "a=b: c\\d\n#ü",
        "spark.wheelmq.a:b c": "!",
    }


@pytest.fixture(scope="session")
def jvm_option() -> str:
    """An option of the JVM of the session `spark`, in place of ours."""
    return "-XX:TieredStopAtLevel=2"


@pytest.fixture(scope="session")
def spark(
    spark_log_dir: Path, preloaded_hook: str, odd_conf: dict[str, str], jvm_option: str
) -> Iterator[SparkSession]:
    """The one session of the run."""
    os.environ[PRELOAD_VARIABLE] = f"{preloaded_hook}, "
    conf = {**odd_conf, "spark.driver.extraJavaOptions": jvm_option}
    session = open_session("wheelmq-tests", log_dir=spark_log_dir, conf=conf)
    yield session
    close_session(session)
