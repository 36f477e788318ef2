"""`wheelmq up` where every port accepts only TLS: all parts, the pipeline on Spark, the dashboard, and a rotation."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from compat.certificates import Authority
from tests.running import COMMAND_DEADLINE_S, START_DEADLINE_S, lines, up

DEADLINE_S = 60.0


def wait_until(condition: Callable[[], object]) -> None:
    """Poll other processes until `condition` holds."""
    until_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.05)


@pytest.mark.spark
@pytest.mark.timeout(START_DEADLINE_S + 240)
def test_all_parts_work_with_tls_alone(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    pair = authority.issue(names=("mq.example",))  # the parts connect to 127.0.0.1 all the same
    settings = {"mode": "enforcing", "certificate_file": pair.certificate, "key_file": pair.key}
    file = tmp_path / "wheelmq.toml"
    file.write_text("[tls]\n" + "".join(f"{key} = {json.dumps(str(value))}\n" for key, value in settings.items()))
    tls = ("--tls-ca", str(authority.file), "--tls-name", "mq.example")
    home = tmp_path / "home"
    with up(home, "-c", str(file)) as running:
        running.command("send", "T", "soon", "--delay", "4s", *tls)
        running.command("send", "T", "indexed by the pipeline", "--delay", "30m", *tls)
        got = lines(running.command("consume", "T", "--group", "g", "--count", "1", "--json", *tls))
        assert got[0]["body"] == "soon" and got[0]["lateness_ms"] >= 0
        log = home / "logs" / "broker.log"
        wait_until(lambda: re.search(r"turn \d+: [1-9]\d* indexed", log.read_text()))
        assert "A server that accepts only TLS does this too" in running.failing_command("send", "T", "plain")

        context = ssl.create_default_context(cafile=authority.file)
        context.check_hostname = False
        url = running.found["dashboard"] + "figures.json"
        assert url.startswith("https://127.0.0.1:")
        with urllib.request.urlopen(url, timeout=COMMAND_DEADLINE_S, context=context) as answer:
            assert json.load(answer)["figures"]["broker"] == "broker-a"

        fresh = Authority(tmp_path / "fresh", "Another authority")
        other = fresh.issue(names=("mq.example",))
        for new, old in ((other.certificate, pair.certificate), (other.key, pair.key)):
            shutil.copy(new, old.with_suffix(".new"))
            old.with_suffix(".new").replace(old)
        logs = [home / "logs" / f"{part}.log" for part in ("broker", "nameserver")]
        wait_until(lambda: all("new connections use the new TLS certificate" in one.read_text() for one in logs))
        tls = ("--tls-ca", str(fresh.file), "--tls-name", "mq.example")
        turns = len(re.findall(r"turn \d+: [1-9]\d* indexed", log.read_text()))
        running.command("send", "T", "after the rotation", "--delay", "29m", *tls)
        wait_until(lambda: len(re.findall(r"turn \d+: [1-9]\d* indexed", log.read_text())) > turns)
        pending = json.loads(running.command("timers", "--json", *tls))
        assert len(pending) == 2
        assert running.stop() == 0
    assert "DIED" not in running.errors.read_text()
