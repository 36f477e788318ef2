"""`wheelmq test-broker`: a broker in a process of its own, whose clock moves by HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from wheelmq.cli import main
from wheelmq.client import SyncProducer, SyncPullConsumer

SOURCES = Path(__file__).parents[3] / "src"


@contextlib.contextmanager
def running(*options: str) -> Iterator[dict[str, str]]:
    """Run the command. Yields what it prints; its standard input ends after that."""
    process = subprocess.Popen(
        [sys.executable, "-m", "wheelmq", "test-broker", "--json", "--ends-with-stdin", *options],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.stdin.close()
        code = process.wait(60)
        process.stdout.close()
    assert code == 0


def ask(url: str, method: str = "POST") -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_client_of_another_process_gets_its_message_after_a_move_of_the_clock() -> None:
    with running("--frozen", "--set", "broker_name=chosen") as ready, SyncProducer(ready["namesrv"]) as producer:
        producer.send("T", b"later", delay_ms=3 * 86_400_000)
        before = ask(f"{ready['clock']}/clock", "GET")[1]
        status, after = ask(f"{ready['clock']}/advance?by=3d1s")
        assert (status, after["is_frozen"]) == (200, True)
        assert after["now_ms"] - before["now_ms"] == 3 * 86_400_000 + 1000
        with SyncPullConsumer(ready["namesrv"], "readers") as consumer:
            consumer.assign(consumer.queues_of("T"))
            [message] = consumer.poll()
            assert (message.body, message.broker_name) == (b"later", "chosen")


def test_wrong_requests_get_the_remedy() -> None:
    with running() as ready:
        for path, text in [
            ("/advance", "no duration"),
            ("/advance?by=-3d", "negative"),
            ("/advance?by=3", "write 3s for seconds"),
        ]:
            status, content = ask(ready["clock"] + path)
            assert status == 400 and text in content["error"]
        status, content = ask(ready["clock"] + "/move")
        assert status == 404 and "POST /advance?by=3d" in content["error"]
        assert ask(ready["clock"] + "/freeze")[1]["is_frozen"]
        assert not ask(ready["clock"] + "/thaw")[1]["is_frozen"]


def test_a_wrong_setting_is_an_error() -> None:
    found = CliRunner().invoke(main, ["test-broker", "--set", "broker_nam=x"])
    assert found.exit_code == 1 and "there is no setting 'broker_nam'" in found.output
