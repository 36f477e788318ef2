"""Cut the power during a run, repeatedly, and check the broker's recovery of each state of the disk.

    python -m tests.crash.states --count 10000 [--seed N]

One run sends 1,000 messages with SYNC_FLUSH, a third of them timers and a fifth of them to blocks, while a pipeline
works. It stops at syncs, replaced files and failpoints. At each stop, several possible states of the disk are
generated: all unsynced data and names are lost; some of the pages were written, in their current or an earlier
version; or the last page is torn between sectors. A broker recovers each state on a copy. Acknowledged messages must
exist once, and served messages must be unchanged. No state counts twice.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.crash.notes import body
from tests.crash.power import STATES_EACH, Dirty, RecordingDisk, State
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import BLANK, BLANK_MAGIC, RecordError, decode_record
from wheelmq.formats.disk.origin import Stream, block_stream, origin_of
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.store.commit_log import CommitLog
from wheelmq.testing import invariants
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import Ask, BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel
from wheelmq.testing.stops import Stops
from wheelmq.testing.workers import HeldWorker

MESSAGES: Final = 1000
TIMER_SHARE: Final = 0.35
DELAYS_MS: Final = ((20, 1000), (1000, 6000), (6000, 14_000), (21_000, 24_000))
"""Delays for the near lane, a turn, a scan of slots, and beyond the roll window."""
BLOCK_SHARE: Final = 0.2
DELAYS_S: Final = ((1, 2), (3, 9), (10, 30))
"""Delays for blocks of 10 s: the imminent block, the next one, and later ones."""
TOPICS: Final = ("CrashA", "CrashB")
QUEUES: Final = 2
NUMBER_BYTES: Final = 16
SETTINGS: Final[dict[str, Any]] = {
    "log_file_bytes": 1 << 16,
    "queue_file_bytes": 20 * 150,
    "transfer_count_max": 1000,
}
WRITE_BACK_SHARE: Final = 0.15
DRAIN_EVERY: Final = 25
"""One of this number of states runs on until every timer is released, and its invariants are checked."""
DRAIN_MS: Final = 32_000
EXAMPLES: Final = 5
COMMIT_LOG: Final = 0
"""Used in place of a block's number."""


class _Looking(Stops):
    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look

    def reach(self, name: str) -> None:
        self._look()


class Sent(NamedTuple):
    """A sent message. Its number is its index in the list."""

    topic: str
    queue_id: int
    due_ms: int
    """0 for a message without a delay."""
    asked: Ask | None
    """None during the send."""

    @property
    def is_acknowledged(self) -> bool:
        answer = None if self.asked is None else self.asked.answer
        return answer is not None and answer.code == ResponseCode.SUCCESS


class Stored(NamedTuple):
    """A record as it was written."""

    raw: bytes
    number: int


class Life:
    """The run. Calls `look` at each place where the power may fail."""

    def __init__(self, folder: Path, seed: int, look: Callable[[], None], flush: str, messages: int) -> None:
        self._chance = random.Random(seed)
        self._messages = messages
        self._look = look
        self.disk = RecordingDisk(look)
        self.harness = BrokerHarness(folder, disk=self.disk, worker=HeldWorker(), flush_mode=flush, **SETTINGS)
        self.sent: list[Sent] = []
        self.stored: dict[tuple[int, int], Stored] = {}
        """Every record ever written, by the block's number or COMMIT_LOG, and its position there."""
        self._read_to: Counter[int] = Counter()

    def live(self) -> None:
        """Send all messages in bursts. Jobs of workers run at random moments."""
        chance, harness = self._chance, self.harness
        model = PipelineModel(harness, index_parts=2)
        with _Looking(self._look):
            while len(self.sent) < self._messages:
                for _ in range(min(chance.randint(1, 12), self._messages - len(self.sent))):
                    self._send()
                harness.tick()
                if chance.random() < 0.7:
                    harness.run_jobs(chance.choice((1, 2, None)))
                harness.advance(chance.choice((0, 5, 40, 150, 400)), model.work, 200)
                harness.run_jobs()
            harness.advance(4000, model.work, 300)
            harness.run_jobs()

    def _send(self) -> None:
        chance, number, now_ms = self._chance, len(self.sent), self.harness.now_ms
        topic, queue_id, due_ms = chance.choice(TOPICS), chance.randrange(QUEUES), 0
        properties = {}
        what = chance.random()
        if what < TIMER_SHARE:
            due_ms = now_ms + chance.randint(*chance.choice(DELAYS_MS))
            properties[props.TIMER_DELIVER_MS] = str(due_ms)
        elif what < TIMER_SHARE + BLOCK_SHARE:
            seconds = chance.randint(*chance.choice(DELAYS_S))
            due_ms = now_ms + seconds * 1000
            properties[props.DELAY_IN_SECONDS] = str(seconds)
        payload = body(number, body_bytes(number))
        command = self.harness.send_command(topic, payload, queue_id=queue_id, properties=properties)
        self.sent.append(Sent(topic, queue_id, due_ms, None))  # the power may fail during the send
        self.sent[number] = self.sent[number]._replace(asked=self.harness.submit(command))

    def read_on(self) -> None:
        """Note the records written since the last call."""
        self._read_log(COMMIT_LOG, self.harness.broker.parts.store.log)
        for block in self.harness.broker.parts.blocks:
            self._read_log(block.number, block.log)

    def _read_log(self, number: int, log: CommitLog) -> None:
        while (position := self._read_to[number]) < log.end:
            file, at = log.files.file_at(position), position % log.files.file_bytes
            left, magic = BLANK.unpack_from(file.view, at)
            if magic != BLANK_MAGIC:
                record = decode_record(file.view[at:])
                stored = Stored(bytes(file.view[at : at + left]), number_of(record.message.body))
                self.stored[number, position] = stored
            self._read_to[number] += left


def number_of(payload: bytes) -> int:
    """Return the number of the message with this body; -1 for a foreign body."""
    try:
        number = int(payload[:NUMBER_BYTES], 16)
    except ValueError:
        return -1
    return number if payload == body(number, body_bytes(number)) else -1


def body_bytes(number: int) -> int:
    """Return the size of a body. Most are short; some exceed two pages, so that a middle page may be missing."""
    return NUMBER_BYTES + number * 37 % 400 + (9000 if number % 20 == 7 else 0)


# Recovery
# -------------------------------------------------------------------------------------------------------------


class Recovered:
    """A broker on a state of the disk, and the messages that it has."""

    def __init__(self, harness: BrokerHarness, life: Life) -> None:
        self.harness = harness
        self._life = life
        self.problems: list[str] = []
        self.served: Counter[int] = Counter()
        self.pending: Counter[int] = Counter()

    def read_all(self) -> None:
        """Read every queue and all pending messages, and note each that differs from its send."""
        self.served.clear()
        self.pending.clear()
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                self._read_queue(topic, queue_id)
        broker = self.harness.broker
        for stream in broker.parts.timer.ends():
            for units in broker.parts.timer.queue_of(stream).chunks():
                self._meet_parked(stream, units, broker.parts.store.log)
        for block in broker.parts.blocks:
            for _, units in block.queue.chunks():
                self._meet_parked(block_stream(block.number), units[units["size"] > 0], block.log, block.number)

    def _meet_parked(self, stream: Stream, units: Any, log: CommitLog, number: int = COMMIT_LOG) -> None:
        """Count the pending messages that units of a queue name."""
        for position, size in zip(units["position"].tolist(), units["size"].tolist(), strict=True):
            raw = bytes(log.read(LogPosition(position), size))
            stored = self._understand(raw, number, position)
            index = int.from_bytes(raw[20:28], "big")
            if stored is not None and origin_of(stream, index) not in self.harness.broker.parts.timer.pending.done:
                self.pending[stored.number] += 1

    def _read_queue(self, topic: str, queue_id: int) -> None:
        at = 0
        while True:
            answer = self.harness.ask(self.harness.pull_command(topic, queue_id, at, maxMsgNums=1000))
            if answer.code != ResponseCode.SUCCESS:
                return
            raw = bytes(answer.body)
            start = 0
            while start < len(raw):
                size = int.from_bytes(raw[start : start + 4], "big")
                self._meet(raw[start : start + size], topic, queue_id, at)
                start += size
                at += 1
            if at != int(answer.ext["nextBeginOffset"]):
                self.problems.append(f"holes: {topic}/{queue_id} before {at}")
                return

    def _meet(self, raw: bytes, topic: str, queue_id: int, queue_offset: int) -> None:
        position = int.from_bytes(raw[28:36], "big")
        stored = self._understand(raw, COMMIT_LOG, position)
        if stored is None:
            return
        if int.from_bytes(raw[20:28], "big") != queue_offset:
            self.problems.append(f"holes: {topic}/{queue_id}#{queue_offset} says it is another")
        sent = self._life.sent[stored.number]
        if (sent.topic, sent.queue_id) != (topic, queue_id):
            self.problems.append(f"elsewhere: message {stored.number} is in {topic}/{queue_id}")
        if int.from_bytes(raw[56:64], "big") < sent.due_ms:
            self.problems.append(f"early: message {stored.number}")
        self.served[stored.number] += 1

    def _understand(self, raw: bytes, number: int, position: int) -> Stored | None:
        """Return the message of a record.

        It must be byte for byte the one written there, or intact with a sent body.
        """
        known = self._life.stored.get((number, position))
        if known is not None and known.raw == raw:
            return known
        try:
            record = decode_record(raw)
        except RecordError as error:
            self.problems.append(f"corrupt: the record at {position}: {error}")
            return None
        named = number_of(record.message.body)
        if not record.body_is_intact or not 0 <= named < len(self._life.sent):
            self.problems.append(f"corrupt: the record at {position} has a body that nobody sent")
            return None
        return Stored(raw, named)

    def judge(self, *, is_drained: bool) -> None:
        """Compare the found messages with the sent ones."""
        for number, sent in enumerate(self._life.sent):
            count = self.served[number] + self.pending[number]
            if count > 1:
                self.problems.append(f"twice: message {number}")
            if sent.is_acknowledged and count == 0:
                self.problems.append(f"lost: message {number}, due {sent.due_ms}")
            if is_drained and self.pending[number]:
                self.problems.append(f"pending for ever: message {number}")


class Explorer:
    """Runs once to find places and again to try `count` states."""

    def __init__(self, count: int, seed: int, *, flush: str = "SYNC_FLUSH", messages: int = MESSAGES) -> None:
        self.count = count
        self.seed = seed
        self._flush = flush
        self._messages = messages
        self._chance = random.Random(seed + 1)
        self._looks = 0
        self._dirty_looks: list[int] = []
        self._chosen: set[int] = set()
        self._is_looking = False
        self._life: Life | None = None
        self._scratch = Path()
        self._tried: set[int] = set()
        self.stops = 0
        self.drained = 0
        self.by_kind: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.stories: list[str] = []

    def explore(self, scratch: Path) -> None:
        """Run once to find the places where the power may fail, and again to cut it there.

        Scratch files go to `scratch`.
        """
        self._scratch = scratch / "state"
        self._run(scratch / "first")
        places = len(self._dirty_looks)
        stops = min(places, -(-self.count // STATES_EACH) * 3 // 2)
        self._chosen = set(self._chance.sample(self._dirty_looks, stops))
        self._run(scratch / "second")

    def _run(self, folder: Path) -> None:
        self._looks = 0
        self._life = None
        self._life = Life(folder, self.seed, self._on_stop, self._flush, self._messages)
        self._life.live()
        self._life.harness.crash()

    def _on_stop(self) -> None:
        """Try states here, because the power may fail here."""
        life = self._life
        if self._is_looking or life is None or not life.harness.is_running:
            return
        self._is_looking = True
        try:
            self._looks += 1
            dirty = Dirty(life.disk, self._chance) if not self._chosen or self._looks in self._chosen else None
            if not self._chosen:
                if dirty:
                    self._dirty_looks.append(self._looks)
            elif dirty and len(self._tried) < self.count:
                self._stop_here(life, dirty)
        finally:
            self._is_looking = False

    def _stop_here(self, life: Life, dirty: Dirty) -> None:
        self.stops += 1
        life.read_on()
        if self._chance.random() < WRITE_BACK_SHARE:
            dirty.write_back()
        for state in dirty.states():
            mark = state.mark(self._looks)
            if mark not in self._tried and len(self._tried) < self.count:
                self._tried.add(mark)
                self.by_kind[state.kind] += 1
                self._try(life, state)

    def _try(self, life: Life, state: State) -> None:
        """Let a broker recover a state, and judge the result."""
        state.put(life.harness.broker.parts.paths.root, self._scratch)
        is_drained = len(self._tried) % DRAIN_EVERY == 0
        problems: list[str] = []
        try:
            with BrokerHarness(self._scratch, clock=ManualClock(life.harness.now_ms), **SETTINGS) as harness:
                found = Recovered(harness, life)
                found.read_all()
                found.judge(is_drained=False)
                problems = found.problems
                if is_drained:
                    self.drained += 1
                    invariants.check(harness.broker)
                    harness.advance(DRAIN_MS, PipelineModel(harness, "after").work, 500)
                    invariants.check(harness.broker)
                    found.read_all()
                    found.judge(is_drained=True)
        except (OSError, AssertionError) as error:
            problems = [f"not recovered: {type(error).__name__}: {str(error)[:200]}"]
        for problem in problems:
            name = problem.partition(":")[0]
            self.wrong[name] += 1
            if self.wrong[name] <= EXAMPLES:
                self.stories.append(f"{state.kind}, at stop {self._looks}: {problem}")


def report(explorer: Explorer, seconds: float) -> list[str]:
    total = sum(explorer.by_kind.values())
    lines = [f"{total} states of the disk at {explorer.stops} stops of one run, seed {explorer.seed}, {seconds:.0f} s"]
    lines += [f"  {kind:24s} {count:7d}" for kind, count in explorer.by_kind.items()]
    lines.append(f"  run on until every timer was out: {explorer.drained}")
    lines.append("  " + "  ".join(f"{name} {explorer.wrong[name]}" for name in ("lost", "corrupt", "twice", "early")))
    lines += [f"VIOLATION {name}: {count}" for name, count in explorer.wrong.items()]
    lines += [f"  {story}" for story in explorer.stories]
    lines.append("FAILED" if explorer.wrong else "nothing lost that was acknowledged, nothing corrupt served")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.crash.states", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="states")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.getLogger("wheelmq").addHandler(logging.NullHandler())
    explorer = Explorer(options.count, options.seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="wheelmq-states-") as folder:
        explorer.explore(Path(folder))
    print("\n".join(report(explorer, time.monotonic() - began)))
    return 1 if explorer.wrong or sum(explorer.by_kind.values()) < options.count else 0


if __name__ == "__main__":
    sys.exit(main())
