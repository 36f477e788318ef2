"""A replica that follows a master's log has the master's state. It delivers the messages that the master had not.

The bytes of the log go over in pieces of any size, and the replica ticks between them at any time.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from wheelmq.broker.broker import Broker
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.origin import KIND_BLOCK, block_stream, stream_kind
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.replication import BlockCopy, copy_log, rejoin

from .profiles import profile

TOPICS = ("T", "U")
COMMIT, ROLLBACK = 8, 12
LEVELS = "1s 2s 5s 9s"

steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(TOPICS), st.integers(0, 2)),
        st.tuples(st.just("timer"), st.sampled_from(TOPICS), st.integers(1, 30_000)),
        st.tuples(st.just("level"), st.sampled_from(TOPICS), st.integers(1, 4)),
        st.tuples(st.just("block"), st.sampled_from(TOPICS), st.integers(1, 30)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("half"), st.sampled_from(TOPICS), st.sampled_from([0, 700])),
        st.tuples(st.just("end"), st.integers(0, 5), st.sampled_from([COMMIT, ROLLBACK])),
        st.tuples(st.just("wait"), st.sampled_from([1, 30, 400, 3500, 9000]), st.just(0)),
        st.tuples(st.just("copy"), st.integers(1, 400), st.just(0)),
        st.tuples(st.just("copy blocks"), st.integers(1, 6), st.just(0)),
    ),
    min_size=1,
    max_size=40,
)


class Sender:
    """Sends messages of all kinds to a master, and remembers them."""

    def __init__(self, master: BrokerHarness) -> None:
        self.master = master
        self.due_ms: dict[bytes, int] = {}
        """Earliest delivery of each message that must be delivered."""
        self._keys: list[tuple[str, bytes]] = []
        self.halves: list[tuple[bytes, int, dict[str, str]]] = []
        """Pending transactions: body, delay of the message, header of the answer to its send."""

    def send(self, topic: str, delay_ms: int, **properties: str) -> None:
        body = b"%d" % (len(self.due_ms) + len(self._keys))
        key = f"key-{len(self._keys)}"
        self._keys.append((topic, body))
        answer = self.master.send(topic, body, properties={props.UNIQ_KEY: key, **properties})
        assert answer.code == ResponseCode.SUCCESS, answer
        self.due_ms[body] = self.master.now_ms + delay_ms

    def cancel(self, number: int) -> None:
        if number >= len(self._keys):
            return
        topic, body = self._keys[number]
        properties = {
            props.UNIQ_KEY: f"cancel-{len(self._keys)}",
            props.TIMER_DEL_UNIQKEY: f"{topic}+key-{number}",
            props.TIMER_DELIVER_MS: str(self.master.now_ms + 1000),
        }
        answer = self.master.send(topic, b"cancel", properties=properties)
        if answer.code == ResponseCode.SUCCESS and self.due_ms.get(body, 0) > self.master.now_ms:
            del self.due_ms[body]

    def send_half(self, topic: str, delay_ms: int) -> None:
        body = b"half %d" % len(self._keys)
        self._keys.append((topic, body))
        properties = {props.TRAN_MSG: "true", props.PRODUCER_GROUP: "producers", props.UNIQ_KEY: body.decode()}
        if delay_ms:
            properties[props.TIMER_DELAY_MS] = str(delay_ms)
        answer = self.master.send(topic, body, properties=properties)
        assert answer.code == ResponseCode.SUCCESS, answer
        self.halves.append((body, delay_ms, answer.ext))

    def end(self, harness: BrokerHarness, number: int, outcome: int) -> None:
        """End a pending transaction at the broker of `harness`."""
        if number >= len(self.halves):
            return
        body, delay_ms, sent = self.halves.pop(number)
        answer = harness.ask_code(
            RequestCode.END_TRANSACTION,
            producerGroup="producers",
            tranStateTableOffset=sent["queueOffset"],
            commitLogOffset=int(sent["msgId"][-16:], 16),
            commitOrRollback=outcome,
            fromTransactionCheck=False,
            msgId=sent["transactionId"],
        )
        assert answer.code == ResponseCode.SUCCESS, answer
        if outcome == COMMIT:
            self.due_ms[body] = harness.now_ms + delay_ms

    def run(self, step: tuple[str, object, object]) -> None:
        match step:
            case ("send", str(topic), _):
                self.send(topic, 0)
            case ("timer", str(topic), int(delay_ms)):
                self.send(topic, delay_ms, **{props.TIMER_DELAY_MS: str(delay_ms)})
            case ("level", str(topic), int(level)):
                self.send(topic, (1000, 2000, 5000, 9000)[level - 1], **{props.DELAY: str(level)})
            case ("block", str(topic), int(seconds)):
                self.send(topic, seconds * 1000, **{props.DELAY_IN_SECONDS: str(seconds)})
            case ("cancel", int(number), _):
                self.cancel(number)
            case ("half", str(topic), int(delay_ms)):
                self.send_half(topic, delay_ms)
            case ("end", int(number), int(outcome)):
                self.end(self.master, number, outcome)
            case ("wait", int(ms), _):
                self.master.advance(ms)


def copy_all(master: BrokerHarness, replica: BrokerHarness, randomness: Random, blocks: BlockCopy) -> None:
    """Copy log and blocks, in any order."""
    if randomness.random() < 0.5:
        blocks.run()
    copy_log(master, replica, randomness)
    blocks.run()
    replica.settle()


def state_of(broker: Broker) -> dict[str, object]:
    """Return the state that follows from the log alone."""
    parts = broker.parts
    queues = {}
    for key, queue in parts.store.queues.items():
        if queue.end > queue.start:
            queues[key] = (queue.start, queue.end, queue.read(queue.start, queue.end - queue.start).tobytes())
    pending = parts.timer.pending
    ends = parts.timer.ends()
    blocks = {}
    for block in parts.blocks:
        log = block.log.files.read(0, block.log.end) if block.log.end else b""
        done = pending.done.of(block_stream(block.number)).between(0, block.queue.end)
        units = block.queue.read(0, block.queue.end)[["position", "size", "due_ms"]]
        if not done.all():
            blocks[block.number] = (block.start_ms, block.end_ms, bytes(log), units.tolist(), done.tolist())
    return {
        "log": parts.store.log.end,
        "queues": queues,
        "done": sorted(
            bits for bits in pending.done.packed(ends) if stream_kind(bits.stream) != KIND_BLOCK and bits.end_index
        ),
        "blocks": blocks,
        "waiting": parts.store.queues.by_topic(pending.counts.by_queue),
    }


@profile(examples=35)
@given(script=steps, seed=st.integers(0, 1 << 30))
def test_a_replica_has_the_state_of_its_master(script: list[tuple[str, object, object]], seed: int) -> None:
    with tempfile.TemporaryDirectory(prefix="wheelmq-") as folder:
        root = Path(folder)
        with (
            BrokerHarness(root / "master", message_delay_level=LEVELS) as master,
            BrokerHarness(
                root / "replica",
                clock=master.clock,
                message_delay_level=LEVELS,
                broker_id=1,
                broker_role="SLAVE",
            ) as replica,
        ):
            randomness, sender, blocks = Random(seed), Sender(master), BlockCopy(master, replica)
            for step in script:
                sender.run(step)
                if step[0] == "copy":
                    copy_log(master, replica, randomness, piece_bytes_max=int(str(step[1])), whole=False)
                if step[0] == "copy blocks":
                    for _ in range(int(str(step[1]))):
                        blocks.step()
                replica.tick(by_event=False)
            copy_all(master, replica, randomness, blocks)
            assert state_of(replica.broker) == state_of(master.broker)
            released = replica.broker.parts.releaser.counts["released"]
            assert released == 0, "a replica releases nothing"


@profile(examples=35)
@given(script=steps, seed=st.integers(0, 1 << 30), away_ms=st.sampled_from([0, 5, 2500]))
def test_a_promoted_replica_delivers_each_message_once(
    script: list[tuple[str, object, object]], seed: int, away_ms: int
) -> None:
    """The master stores a rollback at once. Else its producer is asked again, as after a kill of the master."""
    with tempfile.TemporaryDirectory(prefix="wheelmq-") as folder:
        root = Path(folder)
        with (
            BrokerHarness(root / "master", message_delay_level=LEVELS, transaction_op_batch_interval=0) as master,
            BrokerHarness(
                root / "replica", clock=master.clock, message_delay_level=LEVELS, broker_id=1, broker_role="SLAVE"
            ) as replica,
        ):
            randomness, sender, blocks = Random(seed), Sender(master), BlockCopy(master, replica)
            for step in script:
                sender.run(step)
                if step[0] == "copy blocks":
                    blocks.step()
                replica.tick(by_event=False)
            master.settle()
            copy_all(master, replica, randomness, blocks)
            master.crash()
            lost_ms = replica.now_ms
            replica.clock.advance(away_ms)
            replica.broker.parts.replication.promote("the test")
            promoted_ms = replica.now_ms
            assert sum(replica.broker.parts.transactions.counts.waiting().values()) == len(sender.halves)
            replica.settle()
            while sender.halves:
                sender.end(replica, 0, COMMIT)
            replica.advance(31_000)
            delivered: dict[bytes, int] = {}
            for topic in TOPICS:
                queue = replica.broker.parts.store.queues.find(topic, 0)
                if queue is None or queue.start == queue.end:
                    continue
                for unit in queue.read(queue.start, queue.end - queue.start):
                    record = replica.broker.parts.store.log.record_at(LogPosition(int(unit["position"])))
                    assert record is not None
                    assert record.message.body not in delivered, "twice"
                    delivered[record.message.body] = record.store_ms
            assert delivered.keys() == sender.due_ms.keys()
            for body, due_ms in sender.due_ms.items():
                if due_ms > lost_ms:
                    assert delivered[body] == max(due_ms, promoted_ms)


def bodies_in(harness: BrokerHarness) -> list[bytes]:
    """Return the messages that consumers can see."""
    store, found = harness.broker.parts.store, []
    for queue in (store.queues.find(topic, 0) for topic in TOPICS):
        if queue is None or queue.start == queue.end:  # a truncation leaves an empty queue
            continue
        for unit in queue.read(queue.start, queue.end - queue.start):
            record = store.log.record_at(LogPosition(int(unit["position"])))
            assert record is not None
            found.append(record.message.body)
    return found


@profile(examples=35)
@given(shared=steps, lost=steps, new=steps, seed=st.integers(0, 1 << 30))
def test_a_former_master_takes_the_state_of_its_successor(
    shared: list[tuple[str, object, object]],
    lost: list[tuple[str, object, object]],
    new: list[tuple[str, object, object]],
    seed: int,
) -> None:
    """It has records and messages in blocks that no replica got, and so has the new master at the same places."""
    with tempfile.TemporaryDirectory(prefix="wheelmq-") as folder:
        root = Path(folder)
        with (
            BrokerHarness(root / "first", message_delay_level=LEVELS) as first,
            BrokerHarness(
                root / "second",
                clock=first.clock,
                seed=1,
                message_delay_level=LEVELS,
                broker_id=1,
                broker_role="SLAVE",
            ) as second,
        ):
            randomness, sender = Random(seed), Sender(first)
            sender.send("T", 0)
            for step in shared:
                sender.run(step)
            copy_all(first, second, randomness, BlockCopy(first, second))
            kept, halves = dict(sender.due_ms), list(sender.halves)
            for step in lost:
                sender.run(step)
                second.tick(by_event=False)
            first.crash()
            second.broker.parts.replication.promote("the test")
            second.settle()
            sender.master, sender.halves = second, halves
            sender.due_ms = kept
            for step in new:
                if step[0] != "cancel":
                    sender.run(step)
            rejoin(first, second, log_first=randomness)
            blocks = BlockCopy(second, first)
            copy_all(second, first, randomness, blocks)
            assert blocks.link.cuts is None
            assert state_of(first.broker) == state_of(second.broker)
            second.crash()
            first.broker.parts.replication.promote("the test")
            first.advance(31_000)
            bodies = bodies_in(first)
            assert len(bodies) == len(set(bodies)), "twice"
            assert set(bodies) == {body for body in sender.due_ms if not body.startswith(b"half") or body in bodies}
