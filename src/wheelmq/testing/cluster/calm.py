"""The calm at the end of a run: nothing fails any more, and all brokers become equal."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from wheelmq.broker.broker import Broker
from wheelmq.formats.disk.origin import block_stream
from wheelmq.formats.units import LogPosition
from wheelmq.store.commit_log import CommitLog
from wheelmq.testing import invariants
from wheelmq.testing.cluster.clients import ClusterConsumer, ClusterProducer, HalfProducer
from wheelmq.testing.cluster.cluster import SimulatedCluster
from wheelmq.testing.cluster.member import Member
from wheelmq.testing.simulation.times import CALM_MS
from wheelmq.testing.simulation.trace import Trace

JOIN_MS: Final = 120_000
"""Time until all brokers must follow one master. A slave without a master looks for it each half second."""
PART_MS: Final = 500
CHECKS_MS: Final = 12_000
"""Time until each transaction must have ended: its timeout, and two intervals of checks."""


class Calm:
    """Heals everything, waits, and compares all brokers with the history."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        producers: Sequence[ClusterProducer],
        transactions: HalfProducer,
        consumer: ClusterConsumer,
        collect: Callable[[], None],
        trace: Trace,
    ) -> None:
        """Create the object. `collect` lets all clients take their answers."""
        self._cluster = cluster
        self._producers, self._consumer = producers, consumer
        self._collect = collect
        self._clients: list[ClusterProducer | HalfProducer] = [*producers, transactions]
        self._trace = trace

    def run(self) -> None:
        """Run the calm. Raises AssertionError if a broker or the history is not as it must be."""
        cluster = self._cluster
        self._trace.note("calm")
        cluster.end_faults()
        self._start_all()
        self._join()
        self._compare_blocks()
        for seconds in (1, 7):
            self._producers[0].send_at(cluster.master.harness.now_ms + 1000 * seconds)
        self._let_all_come_out()
        self._join()
        self._compare()
        self._note_digest()

    def _start_all(self) -> None:
        """Start all brokers. If the master waits because a slave has more, promote this slave."""
        cluster = self._cluster
        for member in cluster.members:
            if not member.is_running:
                cluster.start(member)
        self._pass(JOIN_MS // 10)
        slave = cluster.operator.candidate() or cluster.operator.longest()
        if cluster.master_waits and slave is not None:
            cluster.fail_over_to(slave)

    def _join(self) -> None:
        """Wait until all brokers follow the master, and have its log and blocks."""
        cluster = self._cluster
        for _ in range(JOIN_MS // PART_MS):
            cluster.operator.recheck()
            self._pass(PART_MS)
            if not cluster.master.is_master:
                continue
            for client in self._clients:
                if client.view is not cluster.master:
                    client.move(cluster.master)
            if cluster.operator.all_are_complete():
                return
        states = [f"{one.name}: {_state_text(one)}" for one in cluster.members]
        raise AssertionError(f"after {JOIN_MS} ms of calm not all brokers follow {cluster.master.name}: {states}")

    def _pass(self, ms: int) -> None:
        cluster = self._cluster
        while ms > 0:
            cluster.advance(min(ms, PART_MS))
            ms -= PART_MS
            for member in cluster.members:
                if member.is_open:
                    cluster.do(member, member.harness.run_jobs)
            self._collect()

    def _let_all_come_out(self) -> None:
        """Let time pass until no message is pending and every transaction has ended."""
        cluster, oracle = self._cluster, self._cluster.oracle
        self._pass(CHECKS_MS if oracle.halves else CALM_MS)
        last_ms = max((due_ms for due_ms, _ in oracle.pending), default=0)
        self._pass(max(0, last_ms - cluster.now_ms) + CALM_MS + cluster.choices.skew_ms_max)
        assert not oracle.pending, (
            f"{len(oracle.pending)} messages are still pending: {oracle.pending[:5]}, now {cluster.now_ms}"
        )
        oracle.check_transactions()
        waiting = [producer.waits for producer in self._producers]
        assert not any(waiting), f"requests without an answer: {waiting}"

    def _compare(self) -> None:
        cluster = self._cluster
        for member in cluster.members:
            cluster.do(member, partial(self._consumer.drain, member))
            with member.disk.sparing():
                invariants.check(member.broker)
            if member is not cluster.master:
                compare(cluster.master, member)

    def _compare_blocks(self) -> None:
        """Compare the blocks of slaves that have all of the master now. Many of their messages are pending."""
        master = self._cluster.master
        lacking, theirs = master.parts.replication.block_source.lacks(), _blocks(master.broker)
        for member in self._cluster.members:
            ends = {(one.parts.store.log.end, one.parts.store.dispatched_to) for one in (member, master)}
            if len(ends) == 1 and lacking.get(member.broker_id) == 0:
                self._cluster.counts["blocks compared"] += 1
                mine = _blocks(member.broker)  # a former master may still have blocks of its own
                assert all(mine.get(number) == block for number, block in theirs.items()), (
                    f"the blocks of {member.name} differ"
                )

    def _note_digest(self) -> None:
        log = self._cluster.master.parts.store.log
        self._trace.note(f"log {log.start}..{log.end} crc {zlib.crc32(_log_bytes(self._cluster.master.broker))}")
        self._cluster.counts["delivered"] = len(self._cluster.oracle.delivered)
        self._cluster.counts["delivered from blocks"] = self._cluster.oracle.delivered_from_blocks
        self._cluster.counts["records"] = self._cluster.oracle.records


def compare(master: Member, slave: Member) -> None:
    """Assert that a slave has the log and the queues of the master, byte by byte, and its pending messages."""
    mine, theirs = slave.parts.store.log, master.parts.store.log
    start = LogPosition(max(mine.start, theirs.start))
    assert mine.end == theirs.end, f"the log of {slave.name} ends at {mine.end}, that of {master.name} at {theirs.end}"
    assert _log_bytes(slave.broker, start) == _log_bytes(master.broker, start), f"the log of {slave.name} differs"
    assert _queues(slave.broker) == _queues(master.broker), f"the queues of {slave.name} differ"
    assert _blocks(slave.broker) == _blocks(master.broker), f"the blocks of {slave.name} differ"
    counts = [one.parts.store.queues.by_topic(one.parts.timer.pending.counts.by_queue) for one in (slave, master)]
    assert counts[0] == counts[1], f"the pending messages of {slave.name} differ: {counts}"


def _log_bytes(broker: Broker, start: LogPosition | None = None) -> bytes:
    log = broker.parts.store.log
    return _bytes(log, log.start if start is None else start)


def _bytes(log: CommitLog, start: LogPosition) -> bytes:
    pieces = log.files.pieces(start, log.end)
    return b"".join(bytes(file.view[at:stop]) for _, file, at, stop in pieces)


def _queues(broker: Broker) -> dict[tuple[str, int], tuple[int, bytes]]:
    return {
        key: (queue.end, queue.read(queue.start, queue.end - queue.start).tobytes())
        for key, queue in broker.parts.store.queues.items()
        if queue.end > queue.start
    }


def _blocks(broker: Broker) -> dict[int, tuple[bytes, list[bool]]]:
    """Return the bytes of each block with a pending message, and which of its messages have left."""
    found = {}
    for block in broker.parts.blocks:
        done = broker.parts.timer.pending.done.of(block_stream(block.number)).between(0, block.queue.end)
        if not done.all():
            found[block.number] = (_bytes(block.log, LogPosition(0)), done.tolist())
    return found


def _state_text(member: Member) -> str:
    if not member.is_running:
        return "stopped"
    parts = member.parts
    role = "master" if parts.role.is_master else "slave"
    return f"{role}, open {member.is_open}, epoch {parts.replication.epoch}, log end {parts.store.log.end}"
