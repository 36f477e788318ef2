"""The pipeline in a session that it did not open: timers that its turns armed, and queries that end with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from tests.live import Live, live
from wheelmq.client import SyncProducer
from wheelmq.spark.pipeline import run

DEADLINE_S = 120.0
POLL_S = 0.05
LONG_MS = 240_000
DELAY_MS = 12_000


@contextmanager
def running(spark: SparkSession, servers: Live, **options: Any) -> Iterator[Future[None]]:
    """Run the pipeline for the broker of `servers` in a thread, and stop it at the end."""
    stop = threading.Event()
    options = {"access_key": servers.brokers["broker-a"].broker.parts.pipeline_key, **options}
    with ThreadPoolExecutor(1) as threads:
        ran = threads.submit(run, spark, namesrv=[servers.namesrv], stop=stop, **options)
        try:
            yield ran
        finally:
            stop.set()
    ran.result()


def wait_until(condition: Callable[[], bool], ran: Future[None], deadline_s: float = DEADLINE_S) -> None:
    """Wait for a condition while the pipeline runs."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline and not ran.done(), condition
        time.sleep(POLL_S)


@pytest.mark.spark
def test_a_session_of_the_caller_arms_timers(spark: SparkSession, tmp_path: Path) -> None:
    before = {query.id for query in spark.streams.active}
    events, has_turned = list[str](), threading.Event()
    with live(tmp_path) as servers:
        servers.create_topic("T", queues=1)
        parts = servers.brokers["broker-a"].broker.parts
        options = {"on_event": lambda event, **_: events.append(event), "on_first_turn": has_turned.set}
        with running(spark, servers, **options) as ran, SyncProducer(servers.namesrv) as producer:
            producer.send("T", b"first", delay_ms=LONG_MS)
            wait_until(has_turned.is_set, ran)
            armed_by = dict(parts.timer.pending.armed_by)
            for i in range(20):
                producer.send("T", b"%d" % i, delay_ms=DELAY_MS)
            wait_until(lambda: parts.releaser.counts["released"] == 20, ran)
            now_by = parts.timer.pending.armed_by
            assert now_by["pipeline"] - armed_by.get("pipeline", 0) == 20
            assert now_by["near_lane"] == now_by["wheel_lane"] == 0
    assert {query.id for query in spark.streams.active} == before, "its queries end with it"
    assert spark.range(3).count() == 3, "the session stays open"
    assert events[0] == "serving" and "turning" in events and "query ended" not in events


class ConnectSession:
    """The one property of a session of Spark Connect that differs here."""

    @property
    def sparkContext(self) -> None:
        raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "x"})


@pytest.mark.parametrize(
    ("servers", "text"),
    [
        ({}, "give brokers or namesrv"),
        ({"brokers": "127.0.0.1:1"}, "are lists of addresses"),
        ({"brokers": ["127.0.0.1:1"]}, "a session of Spark Connect cannot run turns"),
    ],
)
def test_arguments_that_cannot_work_are_rejected(servers: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        run(ConnectSession(), **servers)  # type: ignore[arg-type]
