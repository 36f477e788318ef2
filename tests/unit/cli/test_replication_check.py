"""The check of `wheelmq doctor` for replication, at masters and slaves."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.unit.broker.broker_group import SLAVE, Group, play
from tests.unit.broker.sample_requests import ROOT
from tests.unit.broker.test_following_with_users import INNER, SECURED, send
from tests.unit.client.conftest import until
from wheelmq.broker.settings import BrokerSettings
from wheelmq.cli.check import Check, CheckStatus
from wheelmq.cli.ports import free_port
from wheelmq.cli.replication_check import MasterConnection, Slave, master_check, replication, slave_check
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.replication_state import ReplicationState
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.replica import FakeReplica


@contextmanager
def served(harness: BrokerHarness) -> Iterator[int]:
    """Answer the requests of one connection with the broker of the harness. Yields the port."""

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            while raw := connection.recv(65_536):
                command = frame.decode(raw, 0, len(raw))
                opaque = command.opaque
                answer = harness.ask(command)
                answer.opaque = opaque
                connection.sendall(frame.encode(answer))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def found(harness: BrokerHarness) -> Check:
    with served(harness) as port:
        return replication(port, harness.settings)


def test_no_broker_is_no_problem(tmp_path: Path) -> None:
    check = replication(free_port(), BrokerSettings.of(store_path=tmp_path))
    assert check.status is CheckStatus.OK and "no broker runs" in check.detail


def test_a_master_names_its_slaves_and_their_lag(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, ha_gap_not_in_sync=1000) as harness:
        assert found(harness) == Check("replication", CheckStatus.OK, "ASYNC_MASTER of broker-a without a slave")
        replica = FakeReplica(harness)
        replica.report(harness.broker.parts.store.log.end)
        text = "ASYNC_MASTER of broker-a: slave 10.0.0.9:5000 is in sync, 0 bytes behind"
        assert found(harness) == Check("replication", CheckStatus.OK, text)
        harness.send("T", b"b" * 5000)
        harness.clock.advance(30)
        check = found(harness)
        assert check.status is CheckStatus.WARN and check.advice
        assert "is not in sync, 5," in check.detail and "bytes are on no other machine since 30 ms" in check.detail
        replica.lose()
        check = found(harness)
        assert check.status is CheckStatus.WARN and "its last slave is gone: 5," in check.detail


def test_a_sync_master_without_a_slave_has_a_warning(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, broker_role="SYNC_MASTER") as harness:
        check = found(harness)
    assert (check.status, check.detail) == (CheckStatus.WARN, "SYNC_MASTER of broker-a without a slave")
    assert "in_sync_replicas=1" in check.advice


def test_a_slave_without_its_master_fails(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, **SLAVE) as harness, served(harness) as port:
        check = replication(port, harness.settings)
    assert check.status is CheckStatus.FAIL
    assert check.detail == "slave 1 of broker-a, without a connection to its master"
    assert f"wheelmq promote 127.0.0.1:{port}" in check.advice


def test_brokers_that_follow_each_other_are_in_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have users. So the request needs a signature."""

    async def scene(group: Group) -> None:
        master = await group.add(**SECURED, inner_client_authentication_credentials=INNER)
        await group.add(**SECURED, **SLAVE, inner_client_authentication_credentials=INNER)
        await send(group, 3)
        assert master.app.broker is not None
        replicas = master.app.broker.parts.replication.replicas
        await until(lambda: replicas.acked() == [master.log_end])
        ports = [one.settings.broker.listen_port for one in group.members]
        check = await asyncio.to_thread(replication, ports[0], master.settings)
        assert check.status is CheckStatus.WARN and "WHEELMQ_ACCESS_KEY" in check.advice
        monkeypatch.setenv("WHEELMQ_ACCESS_KEY", ROOT.name)
        monkeypatch.setenv("WHEELMQ_SECRET_KEY", ROOT.secret)
        checks = [await asyncio.to_thread(replication, port, master.settings) for port in ports]
        assert [one.status for one in checks] == [CheckStatus.OK, CheckStatus.OK]
        assert checks[0].detail.startswith("ASYNC_MASTER of broker-a: slave 127.0.0.1:")
        assert "is in sync, 0 bytes behind" in checks[0].detail
        assert re.fullmatch(r"slave 1 of broker-a is in sync, 0 bytes behind its master \S+", checks[1].detail)

    play(tmp_path, scene)


def state(**facts: object) -> ReplicationState:
    common = {
        "broker_name": "a", "cluster": "c", "is_master": True, "is_sync": True, "broker_id": 0, "free_id": 1,
        "epoch": 1, "ha_port": 1, "log_start": 0, "log_end": 9, "confirmed": 9, "replicas": 1, "lag_bytes": 0,
        "lag_ms": 0, "lacking": {}, "has_blocks": True, "versions": {},
    }  # fmt: skip
    return msgspec.convert({**common, **facts}, ReplicationState)


def test_a_slave_that_is_far_behind_has_a_warning() -> None:
    following = MasterConnection("h:1", max_offset=100, master_flush_offset=1200)
    assert slave_check(state(), following, 1, 1101).status is CheckStatus.OK
    check = slave_check(state(), following, 1, 1100)
    assert check.status is CheckStatus.WARN and "is not in sync, 1,100 bytes behind" in check.detail


def test_messages_in_blocks_that_slaves_lack_are_counted() -> None:
    check = master_check(state(lacking={"1": 2, "2": 1500}), [Slave("h:1", 0, True)])
    assert check.detail.endswith("; slaves lack 1,502 messages with delayInSeconds")
