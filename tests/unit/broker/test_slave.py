"""A slave: it stores nothing for clients and releases nothing, until it is promoted."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.unit.broker.test_send import inner
from wheelmq.broker.registration import register_command
from wheelmq.broker.replication.role import StoredRole, store_role
from wheelmq.broker.state.consumer_offsets import OffsetTable
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.replication import copy_log
from wheelmq.testing.stops import Died, Stops
from wheelmq.testing.workers import HeldWorker

SLAVE: dict[str, Any] = {"broker_id": 1, "broker_role": "SLAVE"}
TEXT = "the broker is a slave with the id 1: send to the master of its name"
REJECT = f"[REJECTREQUEST]system busy, start flow control for a while ({TEXT})"


def stored(harness: BrokerHarness) -> int:
    return harness.broker.parts.store.log.end


@pytest.mark.parametrize(
    "kernels", [pytest.param(True, marks=pytest.mark.kernels), pytest.param(False, marks=pytest.mark.plain)]
)
def test_a_slave_rejects_sends_of_every_kind(tmp_path: Path, kernels: bool) -> None:
    with BrokerHarness(tmp_path, **SLAVE) as harness:
        assert (harness.broker.parts.fast_send is not None) == kernels
        end = stored(harness)
        batch = harness.send_command("T", inner(b"a") + inner(b"b"), m=True)
        batch.code = RequestCode.SEND_BATCH_MESSAGE
        long_header = Command(code=RequestCode.SEND_MESSAGE, body=b"b", version=479)
        back = Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, ext={"offset": "0", "group": "g"}, version=479)
        timer = harness.send_command("T", delay_ms=1000)
        for command in (harness.send_command("T"), batch, long_header, back, timer):
            answer = harness.ask(command)
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_BUSY, REJECT)
        assert stored(harness) == end
        assert harness.broker.dispatch.counts["rejected"] == 5
        assert not harness.broker.parts.admission.takes_sends


def test_a_slave_rejects_other_requests_that_store_messages(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, recall_enable=True) as harness:
        harness.send("T", b"pending", delay_ms=60_000)
        harness.restart(**SLAVE)
        end = stored(harness)
        handle = base64.urlsafe_b64encode(f"v1 T broker-a {harness.now_ms + 60_000} K".encode()).decode()
        recall = Command(code=RequestCode.RECALL_MESSAGE, ext=headers.texts(topic="T", recallHandle=handle))
        answer = harness.ask(recall)
        assert (answer.code, answer.remark) == (
            ResponseCode.SLAVE_NOT_AVAILABLE,
            "recall failed, broker service not available",
        )
        reset = headers.texts(topic="T", group="g", timestamp=-1, isForce=True, queueId=-1)
        answer = harness.ask(Command(code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext=reset))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
        assert stored(harness) == end


def test_a_slave_serves_pulls_and_releases_nothing(tmp_path: Path) -> None:
    """Its master releases the messages. A copy of their release comes with the master's log."""
    with BrokerHarness(tmp_path) as harness:
        harness.send("T", b"old")
        harness.send("T", b"timer", delay_ms=3000)
        harness.send("T", b"level", properties={props.DELAY: "1"})
        harness.restart(**SLAVE)
        assert [record.message.body for record in harness.pull("T").records] == [b"old"]
        harness.advance(60_000)
        assert harness.bodies("T") == [b"old"]
        harness.broker.parts.replication.promote("the test")
        harness.settle()
        assert harness.bodies("T") == [b"old", b"level", b"timer"]


def test_a_registration_names_the_ha_port_once_the_broker_listens_there(tmp_path: Path) -> None:
    """Apache's name server requires the field. No slave may connect to the port of another service."""
    with BrokerHarness(tmp_path) as harness:
        parts = harness.broker.parts
        for port, expected in ((0, ""), (10912, "127.0.0.1:10912")):
            parts.replication.ha_port = port
            ext = register_command(parts.settings, parts.topics, parts.replication).ext
            assert ext["haServerAddr"] == expected


def test_the_store_remembers_a_promotion(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with BrokerHarness(tmp_path, **SLAVE) as harness:
        harness.broker.parts.replication.promote("the test")
        for clean in (True, False):
            harness.restart(clean=clean)
            assert harness.broker.parts.role.is_master and harness.send("T").code == ResponseCode.SUCCESS
        assert "replicationRole.json" in caplog.text


def test_a_slave_remembers_the_mode_of_its_master(tmp_path: Path) -> None:
    """It may be promoted after a restart, and then it must wait for replicas as its master did."""
    with BrokerHarness(tmp_path, **SLAVE) as harness:
        harness.broker.parts.role.note_master(is_sync=True)
        harness.restart(broker_id=2)
        role = harness.broker.parts.role
        assert (role.is_master, role.broker_id) == (False, 2), "the settings choose"
        harness.broker.parts.replication.promote("the test")
        assert role.is_sync
        role.note_master(is_sync=False)
        harness.restart()
        assert harness.broker.parts.role.is_sync and harness.broker.parts.role.is_master


def test_a_promoted_slave_frees_the_id_that_it_had(tmp_path: Path) -> None:
    """A master of three that was a slave for a time has another id than its settings say. Two slaves need two ids."""
    with BrokerHarness(tmp_path, broker_role="ASYNC_MASTER") as harness:
        parts = harness.broker.parts
        harness.crash()
        store_role(parts.disk, parts.paths, StoredRole(is_master=False, broker_id=2))
        harness.start()
        harness.broker.parts.replication.promote("the test")
        assert harness.broker.parts.role.free_id == 2
        harness.restart()
        assert harness.broker.parts.role.free_id == 2


def test_each_former_master_gets_its_own_id(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, **{**SLAVE, "broker_id": 2}) as harness:
        harness.broker.parts.replication.promote("the test")
        role = harness.broker.parts.role
        assert role.give_id("a:1", 0, ()) == 2
        assert role.give_id("b:1", 1, ()) == 1
        assert role.give_id("c:1", 1, [3]) == 4
        harness.restart()
        role = harness.broker.parts.role
        assert [role.give_id(f"{one}:1", 0, ()) for one in "abc"] == [2, 1, 4]
        assert role.id_to_take_back == 0, "the first one has it"


def test_a_former_master_takes_its_id_back_unless_it_gave_it_away(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, **SLAVE) as harness:
        harness.broker.parts.replication.promote("the test")
        role = harness.broker.parts.role
        assert role.id_to_take_back == 1
        answer = harness.ask_code(RequestCode.WMQ_REPLICATION_STATE, formerMaster="a:1", ownId=1)
        assert json.loads(bytes(answer.body))["free_id"] == 1
        assert role.id_to_take_back == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_promotion_is_later_than_a_restart_of_the_killed_master(tmp_path: Path, seed: int) -> None:
    """The slave does not know of the epoch that its former master begins. That one must become its slave."""
    with (
        BrokerHarness(tmp_path / "master", seed=seed) as master,
        BrokerHarness(tmp_path / "slave", seed=seed + 100, **SLAVE) as slave,
    ):
        slave.broker.parts.epochs.follow(list(master.broker.parts.epochs.all))
        for _ in range(4):
            master.restart(clean=False)
        slave.broker.parts.replication.promote("the test")
        assert slave.broker.parts.replication.epoch > master.broker.parts.replication.epoch


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_promoted_slave_has_the_topics_of_its_messages(tmp_path: Path, is_killed: bool) -> None:
    """The former master created them after the last copy of its tables. A kill comes before the tables are saved."""
    with (
        BrokerHarness(tmp_path / "master") as master,
        BrokerHarness(
            tmp_path / "slave", clock=master.clock, tables=HeldWorker(), default_topic_queues=2, **SLAVE
        ) as slave,
    ):
        master.send("plain", b"plain", queue_id=0)
        master.send("timed", b"timed", delay_ms=5000, queue_id=3)
        copy_log(master, slave, Random(1))
        slave.broker.parts.replication.promote("the test")
        if is_killed:
            slave.restart(clean=False)
        for topic, queues in (("plain", 2), ("timed", 4)):  # 2 is the default
            config = slave.broker.parts.topics.get(topic)
            assert config is not None and config.write_queue_nums == queues


def test_a_promoted_slave_lowers_offsets_of_consumers_beyond_its_queues(tmp_path: Path) -> None:
    """The table came before the log. The next messages get the offsets that consumers have committed at the master."""
    with (
        BrokerHarness(tmp_path / "master") as master,
        BrokerHarness(tmp_path / "slave", clock=master.clock, **SLAVE) as slave,
    ):
        for _ in range(4):
            master.send("T")
        copy_log(master, slave, Random(1))
        offsets = slave.broker.parts.consumer_offsets
        offsets.follow(OffsetTable(offset_table={"T@ahead": {0: 9}, "T@behind": {0: 3}}))
        before = offsets.changes
        slave.broker.parts.replication.promote("the test")
        assert (offsets.get("ahead", "T", 0), offsets.get("behind", "T", 0)) == (4, 3)
        assert offsets.changes > before, "the replicas of the new master fetch the table"
        slave.restart()
        assert slave.broker.parts.consumer_offsets.get("ahead", "T", 0) == 4


def test_a_promoted_slave_keeps_its_log_in_a_power_cut(tmp_path: Path) -> None:
    """Its former master may have answered with SYNC_FLUSH for messages that this slave had only in memory."""
    with (
        BrokerHarness(tmp_path / "master") as master,
        BrokerHarness(tmp_path / "slave", clock=master.clock, worker=HeldWorker(), **SLAVE) as slave,
    ):
        master.send("T")
        copy_log(master, slave, Random(1))
        slave.broker.parts.replication.promote("the test")
        promoted = slave.broker.parts.epochs.last
        slave.cut_power(keep=0.0)
        slave.start()
        last = slave.broker.parts.epochs.last
        assert promoted is not None and last is not None
        assert stored(slave) == last.start == promoted.start == stored(master)
        assert last.number > promoted.number


def test_a_promotion_that_a_start_has_seen_survives_a_power_cut(tmp_path: Path) -> None:
    """A kill may come between the new name of a file and the sync of its folder."""
    ends = set()
    for die_at in range(40):
        with BrokerHarness(tmp_path / str(die_at), **SLAVE) as slave, Stops() as stops:
            stops.arm(die_at)
            try:
                slave.broker.parts.replication.promote("the test")
            except Died:
                ends.add(stops.passed[-1])
            stops.disarm()
            slave.crash()
            slave.start()
            was_master, epochs = slave.broker.parts.role.is_master, slave.broker.parts.epochs.all
            slave.cut_power(keep=0.0)
            slave.start()
            assert slave.broker.parts.role.is_master == was_master
            assert was_master or slave.broker.parts.epochs.all == epochs
    assert "replace.renamed" in ends
