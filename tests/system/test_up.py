"""`wheelmq up` as users run it: real processes, real signals, the command line at both ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.running import COMMAND_DEADLINE_S, SMALL, START_DEADLINE_S, STOP_DEADLINE_S, lines, up, wheelmq
from wheelmq.cli.ports import free_port


@pytest.mark.timeout(START_DEADLINE_S + 120)
def test_commands_work_with_a_broker_without_a_pipeline(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with up(home, "--no-pipeline", "--flush", "SYNC_FLUSH") as running:
        found = running.found
        assert (found["event"], found["ready"]) == ("ready", True)
        assert Path(found["store"]) == home / "store"
        assert {name: psutil.pid_exists(found["pids"][name]) for name in ("up", "namesrv", "broker")} == {
            "up": True,
            "namesrv": True,
            "broker": True,
        }
        assert found["pids"]["pipeline"] is None

        sent = lines(running.command("send", "T", "soon", "--delay", "300ms", "--keys", "k1 k2", "--json"))[0]
        running.command("send", "T", "at once", "--tags", "t")
        running.command("send", "T", "in an hour", "--at", "+1h")
        got = lines(running.command("consume", "T", "--group", "g", "--count", "2", "--json"))
        by_body = {message["body"]: message for message in got}
        assert set(by_body) == {"soon", "at once"}
        assert by_body["soon"]["unique_key"] == sent["unique_key"]
        assert by_body["soon"]["keys"] == ["k1", "k2"]
        assert by_body["soon"]["lateness_ms"] >= 0
        assert by_body["at once"]["due_ms"] is None

        os.kill(found["pids"]["broker"], signal.SIGKILL)  # it comes back on its port with all messages
        assert "at once" in running.command("consume", "T", "--group", "other", "--count", "2")
        assert "DIED" in running.errors.read_text()
        pending = json.loads(running.command("timers", "--json"))
        assert [row["topic"] for row in pending] == ["T"]
        assert json.loads(running.command("timers", "--json", "--to", "+30m")) == []
        with urllib.request.urlopen(found["dashboard"] + "figures.json", timeout=COMMAND_DEADLINE_S) as answer:
            shown = json.load(answer)
        assert shown["problem"] == "" and shown["figures"]["broker"] == "broker-a"
        assert shown["figures"]["overview"]["waiting"] == {"timer": 1, "level": 0, "block": 0}
        check_metrics(found["dashboard"], found["metrics"])
        counts = json.loads(running.command("timer-counts", "--json", "--topic", "T"))
        assert counts == [{"minute_ms": pending[0]["due_ms"] // 60_000 * 60_000, "count": 1}]
        delayed = []
        for words in (["--level", "19"], ["--delay-in-seconds", "7200"], ["--delay", "2h"]):
            delayed += lines(running.command("send", "T", "never", *words, "--json"))
        listed = {row["unique_key"]: row for row in json.loads(running.command("timers", "--json"))}
        for sent, level in zip(delayed, (18, None, None), strict=True):
            key = sent["unique_key"]
            assert (sent["level"], listed[key]["level"]) == (level, level)
            if sent["due_is_exact"]:
                assert sent["due_ms"] == listed[key]["due_ms"]
            else:  # a message in a block is not found by its id
                assert listed[key]["block"] is not None and abs(sent["due_ms"] - listed[key]["due_ms"]) < 1000
            assert "Cancelled" in running.command("cancel", "T", "--key", key)
        running.command("send", "Levels", "a second", "--level", "1")
        [of_level] = lines(running.command("consume", "Levels", "--group", "g", "--count", "1", "--json"))
        assert (of_level["level"], of_level["due_is_exact"]) == (1, False) and of_level["lateness_ms"] >= 0
        (left,), (before,) = json.loads(running.command("timers", "--json")), pending
        assert {**left, "state": ""} == {**before, "state": ""}, "the broker may have indexed it meanwhile"
        refused = running.failing_command("send", "T", "far", "--at", "+30d")
        assert "this broker's timer reaches 3d" in refused
        assert "--delay-in-seconds 2592000" in refused and "--set timer_max_delay_seconds=2592000" in refused
        refused = running.failing_command("send", "T", "far", "--delay-in-seconds", "99999999")
        assert "blocks reach 366d" in refused and "--set block_max_delay_seconds=99999999" in refused
        assert "Nothing was cancelled" in running.failing_command("cancel", "T", "--key", key)
        assert "does not know topic Other" in running.failing_command("timers", "--topic", "Other")
        options = ("--home", str(home), "--namesrv-port=0", "--broker-port=0")
        second = subprocess.run(wheelmq("up", *options), capture_output=True, text=True, timeout=START_DEADLINE_S)
        assert second.returncode == 1
        assert f"is in use by process {found['pids']['up']}" in second.stderr
        assert f"stop that (kill {found['pids']['up']})" in second.stderr
        assert "Spark is up" not in second.stderr.partition("Error:")[2]
        found_by_key = json.loads(running.command("timers", "--key", "k1", "--topic", "T", "--json"))
        assert [one["end"] for one in found_by_key] == ["released"]
        assert running.stop() == 0
    assert not (home / "store" / "abort").exists()
    offline = subprocess.run(wheelmq("timers", "--store", found["store"], "--json"), capture_output=True, text=True)
    found_offline = [{**row, "state": ""} for row in json.loads(offline.stdout)]
    assert found_offline == [{**row, "state": ""} for row in pending], offline.stderr


def check_metrics(dashboard: str, address: str) -> None:
    """Fetch the metrics, health and readiness, which need no setting."""
    with urllib.request.urlopen(address, timeout=COMMAND_DEADLINE_S) as answer:
        text = answer.read().decode()
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    assert "other" in {sample.labels["consumer_group"] for sample in families["rocketmq_consumer_lag_messages"]}
    (waiting,) = [sample for sample in families["wheelmq_waiting_messages"] if sample.labels["where"] == "timer"]
    assert waiting.value == 1 and waiting.labels["node_id"] == "broker-a"
    assert families["process_open_fds"][0].value > 5 and families["wheelmq_connections"][0].value > 0
    for path, state in (("healthz", "ok\n"), ("readyz", "ready\n")):
        with urllib.request.urlopen(dashboard + path, timeout=COMMAND_DEADLINE_S) as answer:
            assert (answer.status, answer.read().decode()) == (200, state)


@pytest.mark.spark
@pytest.mark.timeout(START_DEADLINE_S + 120)
def test_the_pipeline_indexes_and_stages_messages(tmp_path: Path) -> None:
    with up(tmp_path / "home") as running:
        found = running.found
        assert psutil.pid_exists(found["pids"]["pipeline"])
        assert psutil.Process(found["pids"]["jvm"]).name() == "java"
        running.command("send", "T", "staged by the pipeline", "--delay", "4s")
        running.command("send", "T", "indexed by the pipeline", "--delay", "30m")
        got = lines(running.command("consume", "T", "--group", "g", "--count", "1", "--json"))
        assert got[0]["body"] == "staged by the pipeline"
        assert got[0]["lateness_ms"] >= 0
        deadline = time.monotonic() + COMMAND_DEADLINE_S  # a first turn may be slow on a busy machine
        while (states := [row["state"] for row in json.loads(running.command("timers", "--json"))]) != ["indexed"]:
            assert states == ["parked"] and time.monotonic() < deadline
        assert running.stop(signal.SIGINT) == 0


def test_a_stop_during_the_start_is_clean(tmp_path: Path) -> None:
    errors = tmp_path / "up.err"
    ports = ("--namesrv-port=0", "--broker-port=0")
    with errors.open("w") as file:
        process = subprocess.Popen(
            wheelmq("up", "--home", str(tmp_path / "home"), *ports, *SMALL), stdout=subprocess.PIPE, stderr=file
        )
    try:
        while "listens" not in errors.read_text():
            assert process.poll() is None, errors.read_text()
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_DEADLINE_S) == 0, errors.read_text()
        assert psutil.wait_procs(family, timeout=5)[1] == []
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_consumer_reports_that_no_broker_is_registered() -> None:
    port = free_port()
    namesrv = subprocess.Popen(wheelmq("nameserver", "--port", str(port), "--json"), stdout=subprocess.PIPE, text=True)
    try:
        assert namesrv.stdout is not None and "listening" in namesrv.stdout.readline()
        command = wheelmq("consume", "T", "--group", "g", "--namesrv", f"127.0.0.1:{port}")
        consumer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert consumer.stderr is not None
        assert "No broker is registered" in consumer.stderr.readline()
        assert "waits for messages of T" in consumer.stderr.readline()
        consumer.send_signal(signal.SIGTERM)
        consumer.communicate(timeout=COMMAND_DEADLINE_S)
        assert consumer.returncode == 0
    finally:
        namesrv.terminate()
        namesrv.communicate(timeout=STOP_DEADLINE_S)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder that takes no files, not even from root")
def test_the_error_names_a_home_that_is_not_writable() -> None:
    options = ("--home", "/proc/x", "--namesrv-port=0", "--broker-port=0")
    done = subprocess.run(wheelmq("up", *options), capture_output=True, text=True, timeout=COMMAND_DEADLINE_S)
    assert done.returncode == 1
    assert "/proc/x cannot be written" in done.stderr and "choose another --home" in done.stderr


def test_the_error_names_the_options_of_a_port_given_twice(tmp_path: Path) -> None:
    port = str(free_port())
    options = ("--home", str(tmp_path), "--namesrv-port", port, "--broker-port", port)
    done = subprocess.run(wheelmq("up", *options), capture_output=True, text=True, timeout=COMMAND_DEADLINE_S)
    assert done.returncode == 1
    assert "--namesrv-port" in done.stderr and "--broker-port" in done.stderr


def test_the_error_names_the_process_that_uses_a_port(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = str(server.getsockname()[1])
        options = ("--home", str(tmp_path), "--namesrv-port", str(free_port()), "--broker-port", taken)
        done = subprocess.run(wheelmq("up", *options), capture_output=True, text=True, timeout=COMMAND_DEADLINE_S)
    assert done.returncode == 1
    assert f"port {taken} is taken by process {os.getpid()}" in done.stderr
    assert "--broker-port" in done.stderr
