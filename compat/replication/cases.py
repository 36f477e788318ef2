"""The cases: WheelMQ follows a master of Apache RocketMQ, and Apache RocketMQ follows a master of WheelMQ."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import psutil

from compat.apache.apache import VERSIONS, ApacheNameServer, free_port
from compat.golden.life import CONSUMED, GROUP, Sender, now_ms
from compat.replication.cut import CuttableLink
from compat.replication.load import Sent, send_all
from compat.replication.reading import check, config_of, lateness_ms, read, same_log
from compat.replication.servers import (
    LOG_FILE_BYTES,
    MASTER,
    SLAVE,
    SYNC_MASTER,
    Broker,
    OurBroker,
    OurServer,
    TheirBroker,
    log_end,
    until,
)
from wheelmq.cli.switch import state_at
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import Refused
from wheelmq.net.sync_connection import SyncConnection

Measures = dict[str, float]

BIG: Final = 6000
"""Bytes of a body: 60 rounds of messages fill several log files."""
PROMOTE_DEADLINE_S: Final = 120.0
RETRIES: Final = 7
"""A setting of the group that the slave must get."""
SLAVE_TABLES_S: Final = 180.0
"""Apache's slave fetches its tables for the first time 60 s after its start."""
OURS_LATE_MS: Final = 3000
"""Far above the lateness of a broker at rest, for a busy machine."""


class Place:
    """The folder and the servers of one case. All servers end with the `with` block."""

    def __init__(self, folder: Path, version: str = VERSIONS[0]) -> None:
        self.folder = folder
        self.version = version
        self._open = ExitStack()
        self.namesrv = ""

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def our_names(self) -> None:
        names = OurServer(self.folder / "names", free_port(), "nameserver")
        self._open.callback(names.kill)
        names.start()
        self.namesrv = names.address

    def their_names(self) -> None:
        self.namesrv = self._open.enter_context(ApacheNameServer(self.folder / "names")).address

    def ours(self, name: str, **config: object) -> OurBroker:
        broker = OurBroker(self.folder / name, self.namesrv, config)
        self._open.callback(broker.kill)
        broker.start()
        return broker

    def theirs(self, name: str, **config: object) -> TheirBroker:
        broker = TheirBroker(self.folder / name, self.namesrv, config, self.version)
        return self._open.enter_context(broker)

    def link(self, target: str) -> CuttableLink:
        return self._open.enter_context(closing(CuttableLink(target)))


@contextmanager
def _under_load(address: str, name: str, *, count: int, timer_ms: int, step_ms: int = 10) -> Iterator[list[Sent]]:
    """Send messages in a thread meanwhile. Yields a list that holds the sent messages after the block."""
    found: list[Sent] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            found.append(send_all(address, name, count, timer_ms=timer_ms, step_ms=step_ms, body_bytes=BIG))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield found
    thread.join()
    if failures:
        raise failures[0]


def _caught_up(master: Broker, slave: Broker) -> int:
    """Wait until the slave has the whole log of a master that gets no messages. Returns its end."""
    until("the slave has the log of its master", lambda: log_end(slave) == log_end(master) > 0)
    return log_end(master)


def _delivered(broker: Broker, sent: Sent) -> None:
    wanted = {*sent.at_once, *sent.due_ms}
    until(
        f"the broker at {broker.address} has {sent.count} messages",
        lambda: wanted <= _bodies(broker),
    )


def _send_code(address: str, body: bytes) -> tuple[int, float]:
    """Send one message. Returns the code of the answer, and the seconds that it took."""
    with closing(SyncConnection(address, timeout_s=20.0)) as link:
        began_s = time.monotonic()
        try:
            Sender(link, now_ms() << 20).send(body)
        except Refused as error:
            return error.code, time.monotonic() - began_s
        return ResponseCode.SUCCESS, time.monotonic() - began_s


# WheelMQ is the master ------------------------------------------------------------------------------------------------


def apache_follows_an_async_master(place: Place) -> Measures:
    """Apache's slave gets the whole log, serves consumers, has the tables, and comes back after a kill."""
    place.our_names()
    master = place.ours("master", **MASTER)
    sent = send_all(master.address, "before", 60, timer_ms=2000, body_bytes=BIG)
    assert log_end(master) > 2 * LOG_FILE_BYTES, "the slave begins with a log of several files"
    slave = place.theirs("slave", **SLAVE)
    _caught_up(master, slave)
    with _under_load(master.address, "during", count=60, timer_ms=2000) as during:
        until("the load has begun", lambda: log_end(master) > 3 * LOG_FILE_BYTES)
        slave.kill()
        slave.start()
    sent += during[0]
    _commit_offset(master.address)
    _delivered(master, sent)
    end = _caught_up(master, slave)
    same_log(master, slave, end)
    _await_tables(slave)
    records = read(slave.address)
    check(records, sent)
    late_ms = lateness_ms(records, sent, 0)
    return {"log_bytes": end, "messages": sent.count, "late_max_ms": max(late_ms)}


def apache_follows_a_sync_master(place: Place) -> Measures:
    """A SYNC_MASTER waits for Apache's slave: it is away, follows, hangs, and follows again. The master is killed."""
    place.their_names()
    config = {**SYNC_MASTER, "inSyncReplicas": 2, "slaveTimeout": 1500, "haHousekeepingInterval": 8000}
    master = place.ours("master", **config)
    alone = _send_code(master.address, b"alone")
    assert alone[0] == ResponseCode.SLAVE_NOT_AVAILABLE, alone
    slave = place.theirs("slave", **SLAVE)
    _caught_up(master, slave)
    sent = send_all(master.address, "both", 60, timer_ms=1000, body_bytes=BIG)  # each answer is SUCCESS
    os.kill(slave.pid, signal.SIGSTOP)
    until("the slave hangs", lambda: psutil.Process(slave.pid).status() == psutil.STATUS_STOPPED)
    hanging = _send_code(master.address, b"hanging")
    assert hanging[0] == ResponseCode.FLUSH_SLAVE_TIMEOUT and 1.4 < hanging[1] < 3.0, hanging
    until("the master closes the silent connection", lambda: _replicas(master) == 0)
    os.kill(slave.pid, signal.SIGCONT)
    until("the slave connects again", lambda: _replicas(master) == 1)
    _caught_up(master, slave)
    assert _send_code(master.address, b"again")[0] == ResponseCode.SUCCESS
    master.kill()
    master.start()
    until("the slave follows the new process", lambda: _send_code(master.address, b"new")[0] == ResponseCode.SUCCESS)
    sent += send_all(master.address, "later", 20, timer_ms=1000, body_bytes=BIG)
    _delivered(master, sent)
    end = _caught_up(master, slave)
    same_log(master, slave, end)
    _await_topic(slave)
    check(read(slave.address), sent)
    return {"log_bytes": end, "messages": sent.count, "waited_ms": 1000 * hanging[1]}


def apache_takes_over_and_we_come_back(place: Place) -> Measures:
    """Our master dies, and Apache's slave starts again as the master. A broker of ours follows it and takes over."""
    place.our_names()
    master = place.ours("master", **MASTER)
    slave = place.theirs("slave", **SLAVE)
    sent = send_all(master.address, "first", 5, timer_ms=1000)
    _await_topic(slave)
    sent += send_all(master.address, "pending", 40, timer_ms=1000, step_ms=1000)
    delivered = len(sent.at_once) + 5
    until("some are delivered", lambda: len(read(master.address)) > delivered + 5)
    _caught_up(master, slave)
    master.kill()
    slave.kill()
    slave.config |= MASTER
    slave.start()
    back = place.ours("back", **SLAVE)
    _caught_up(slave, back)
    return _fail_over(place, slave, back, sent, may_repeat=True)


# Apache is the master -------------------------------------------------------------------------------------------------


def we_follow_an_async_master(place: Place) -> Measures:
    """Our slave gets all files, breaks off, is killed, and is promoted after Apache's master is killed."""
    place.their_names()
    master = place.theirs("master", **MASTER)
    sent = send_all(master.address, "before", 60, timer_ms=3000, body_bytes=BIG)
    assert log_end(master) > 2 * LOG_FILE_BYTES, "the slave begins with a log of several files"
    link = place.link(f"127.0.0.1:{master.config['haListenPort']}")
    slave = place.ours("slave", **SLAVE, haMasterAddress=link.address)
    _caught_up(master, slave)
    breaks = 0
    with _under_load(master.address, "during", count=120, timer_ms=3000, step_ms=300) as during:
        while not during and breaks < 40:
            breaks += link.cut()
            time.sleep(0.05)  # the load runs at its own speed
            if breaks == 5:
                slave.kill()
                slave.start()
    sent += during[0]
    _commit_offset(master.address)
    until("the slave has the offset", lambda: _offset(slave) == CONSUMED)
    until("the slave has the group", lambda: _retries(slave) == RETRIES, SLAVE_TABLES_S)
    end = _caught_up(master, slave)
    same_log(master, slave, end)
    check_at_once(slave, sent)
    return {"breaks": breaks, **_fail_over(place, master, slave, sent)}


def we_follow_a_sync_master(place: Place) -> Measures:
    """Apache's SYNC_MASTER waits for our slave, and dies under load. No acknowledged message is lost."""
    place.our_names()
    master = place.theirs("master", **SYNC_MASTER, inSyncReplicas=2, slaveTimeout=1500)
    alone = _send_code(master.address, b"alone")
    assert alone[0] == ResponseCode.FLUSH_SLAVE_TIMEOUT, alone
    slave = place.ours("slave", **SLAVE)
    until("the slave follows", lambda: _send_code(master.address, b"with")[0] == ResponseCode.SUCCESS)
    sent = send_all(master.address, "both", 60, timer_ms=3000, step_ms=400, body_bytes=BIG)
    slave.kill()
    gone = _send_code(master.address, b"gone")
    assert gone[0] == ResponseCode.FLUSH_SLAVE_TIMEOUT, gone
    slave.start()
    until("the slave follows", lambda: _send_code(master.address, b"with")[0] == ResponseCode.SUCCESS)
    same_log(master, slave, _caught_up(master, slave))
    found = _fail_over(place, master, slave, sent)
    end = log_end(slave)
    slave.kill()
    slave.start()
    assert log_end(slave) >= end
    check(read(slave.address), sent)
    return found


def we_follow_a_master_with_deleted_files(place: Place) -> Measures:
    """Apache's master has deleted its first log files. Our slave begins at the first one that is left."""
    place.their_names()
    master = place.theirs("master", **MASTER)
    send_all(master.address, "old", 80, timer_ms=500, body_bytes=BIG)
    until("the timers are delivered", lambda: len(read(master.address)) >= 6 * 80)
    master.stop()
    first = sorted((master.store_dir / "commitlog").iterdir())[0]
    first.unlink()
    master.start()
    start = first.stat().st_size if first.exists() else LOG_FILE_BYTES
    slave = place.ours("slave", **SLAVE)
    sent = send_all(master.address, "new", 40, timer_ms=500, body_bytes=BIG)
    end = _caught_up(master, slave)
    same_log(master, slave, end, start)
    return {"log_bytes": end - start, "messages": sent.count}


def check_at_once(slave: OurBroker, sent: Sent) -> None:
    """Check what a consumer reads from the slave before the promotion."""
    bodies = [record.message.body for record in read(slave.address)]
    wanted = set(sent.at_once)
    assert [body for body in bodies if body in wanted] == sent.at_once
    assert not set(sent.never) & set(bodies)


def _fail_over(
    place: Place, master: TheirBroker, slave: OurBroker, sent: Sent, *, may_repeat: bool = False
) -> Measures:
    """Kill the master, promote the slave, and check that each pending message comes once and on time.

    `may_repeat` allows repeats before the promotion.
    """
    until("the slave has the checkpoint of the timer", lambda: (slave.store_dir / "config" / "timercheck").exists())
    early = _promote(place, slave)
    assert early.returncode == 1 and "Stop it first" in early.stdout + early.stderr, early
    last = send_all(master.address, "last", 25, timer_ms=1000, step_ms=1200)
    sent += last
    until("some of them are delivered", lambda: len(_bodies(slave) & set(last.due_ms)) > 2)
    before = _bodies(slave)
    assert not set(last.due_ms) <= before, "none is pending"
    master.kill()
    killed_ms = now_ms()
    done = _promote(place, slave, "--force")
    assert done.returncode == 0, done.stderr
    promoted_ms = now_ms()
    assert json.loads(done.stdout)["epoch"] > 0, done.stdout
    until("the promoted slave takes messages", lambda: _send_code(slave.address, b"x")[0] == ResponseCode.SUCCESS)
    _delivered(slave, sent)
    records = read(slave.address)
    repeats = check(records, sent, may_repeat=may_repeat)
    late_ms = lateness_ms(records, sent, promoted_ms)
    own = [record for record in records if record.store_ms >= killed_ms and record.message.body in sent.due_ms]
    again = [record for record in own if record.message.body in before]
    assert not again, f"{len(again)} messages were delivered again, such as {again[0].message.body[:40]!r}"
    own_ms = [record.store_ms - sent.due_ms[record.message.body] for record in own]
    assert min(own_ms) >= 0, f"a timer was {-min(own_ms)} ms early"
    assert len(own) == len({record.message.body for record in own}), "a message was delivered twice"
    assert max(late_ms) < OURS_LATE_MS, f"a timer was {max(late_ms)} ms late"
    return {
        "messages": sent.count,
        "after_promotion": len(own_ms),
        "repeats_before": repeats,
        "late_max_ms": max(late_ms),
        "promotion_ms": promoted_ms - killed_ms,
    }


def _bodies(broker: Broker) -> set[bytes]:
    return {record.message.body for record in read(broker.address)}


def _promote(place: Place, slave: OurBroker, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["promote", slave.address, "--namesrv", place.namesrv, "--json", *options]
    return subprocess.run(
        [sys.executable, "-P", "-m", "wheelmq", *command], capture_output=True, text=True, timeout=PROMOTE_DEADLINE_S
    )


# Tables ---------------------------------------------------------------------------------------------------------------


def _commit_offset(address: str) -> None:
    """Create the group of the tables, and store an offset of it."""
    with closing(SyncConnection(address)) as link:
        group = json.dumps({"groupName": GROUP, "retryMaxTimes": RETRIES}).encode()
        link.ask(Command(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group))
        Sender(link, 0).commit_offset()


def _replicas(master: OurBroker) -> int:
    with closing(SyncConnection(master.address)) as link:
        return state_at(link).replicas


def _has_topic(broker: Broker) -> bool:
    return "T" in (config_of(broker, "topics.json") or {}).get("topicConfigTable", {})


def _retries(broker: Broker) -> int | None:
    table = (config_of(broker, "subscriptionGroup.json") or {}).get("subscriptionGroupTable", {})
    found: int | None = table.get(GROUP, {}).get("retryMaxTimes")
    return found


def _level_4(broker: Broker) -> int:
    return int((config_of(broker, "delayOffset.json") or {}).get("offsetTable", {}).get("4", 0))


def _offset(broker: Broker) -> int | None:
    table = config_of(broker, "consumerOffset.json") or {}
    found: int | None = table.get("offsetTable", {}).get("T@G", {}).get("0")
    return found


def _await_topic(slave: TheirBroker) -> None:
    """Wait until Apache's slave has the topic: it copies the topics of its master every few seconds."""
    until("the slave has the topic", lambda: _has_topic(slave), SLAVE_TABLES_S)


def _await_tables(slave: TheirBroker) -> None:
    """Wait until Apache's slave has each table of its master."""
    _await_topic(slave)
    until("the slave has the offset", lambda: _offset(slave) == CONSUMED, SLAVE_TABLES_S)
    names = ("delayOffset.json", "subscriptionGroup.json", "timermetrics", "timercheck")
    files = [slave.store_dir / "config" / name for name in names]
    until(f"the slave has {names}", lambda: all(file.exists() for file in files), SLAVE_TABLES_S)
    until("the slave has the group", lambda: _retries(slave) == RETRIES, SLAVE_TABLES_S)
    until("the slave has the offset of level 4", lambda: _level_4(slave) > 0, SLAVE_TABLES_S)


CASES: Final[tuple[Callable[[Place], Measures], ...]] = (
    apache_follows_an_async_master,
    apache_follows_a_sync_master,
    apache_takes_over_and_we_come_back,
    we_follow_an_async_master,
    we_follow_a_sync_master,
    we_follow_a_master_with_deleted_files,
)
