"""Damage every file of a store, byte by byte, and check the broker's reaction.

    python -m tests.crash.sweeps [--every 37] [--only commitlog,timermark] [--how torn|flipped]

For each kind of file, the tail is torn off at every byte of the last 64 KiB. Also, one bit is flipped in every byte
of the last 16 KiB, or of the whole file. A torn mapped file ends in zeros; a file that is replaced as a whole is cut
short. The broker either rejects the store and names a file, or serves it. Its served messages are compared with those
before the damage. Each possible effect of damage has a name here, and docs/operations/damage.md gives the reason. Any
other effect is a violation.

Cases with equal damage, such as tears in front of zeros, are tried once and counted each. Recovered stores that are
equal byte for byte, and serve the same messages, run on only once until all timers are released. Most tears within
one record are such cases.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from wheelmq.config.errors import ConfigError
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import RecordError, decode_record
from wheelmq.formats.disk.origin import Stream, block_stream, origin_of
from wheelmq.formats.names import TIMER_TOPIC
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.bodies import BodyError
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.store.commit_log import CommitLog
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

TAIL_BYTES: Final = 64 << 10
FLIPPED_BYTES: Final = 16 << 10
BLOCKS_FOLDER: Final = "scheduledtempdata"
TOPICS: Final = ("T", "U")
GROUP: Final = "consumers"
SETTINGS: Final[dict[str, Any]] = {"log_file_bytes": 1 << 17, "queue_file_bytes": 20 * 400, "transfer_count_max": 1000}
RARELY: Final = {"checkpoint_ms": 60_000, "snapshot_ms": 60_000}
"""The test is about damage, not about later writes."""
TURNS_MS: Final = 4000
PLAIN: Final = 200
WAITING: Final = 24
"""Pending timers when the broker is killed. Half as many messages are parked in blocks."""
WAIT_MS: Final = 25_000
CASE_S: Final = 60
"""Longest time for one case. A slower broker counts as hung."""
EXAMPLES: Final = 3
NOT_OF_DAMAGE: Final = ("and writes it again from the log", "blocks: the last stop was not clean")
"""What is told of the last index file, and of blocks, after any kill."""


SET_ASIDE_TOLD: Final = "is set aside: its record is damaged"
"""The warning about each message of a block that is never delivered."""


class Class(StrEnum):
    """The effect of damage."""

    AS_BEFORE = "as before"
    REFUSED = "refused, with the file's name"
    SHORTER = "the log ends sooner"
    SET_ASIDE = "a damaged record is served to nobody"
    UNCHECKED = "a damaged body is served, with the checksum it was stored with"
    UNSEEN = "changed where no checksum is"
    REPEATED = "delivered again"
    NO_TOPIC = "the newest topic is unknown until it is made again"
    OUT_OF_SIGHT = "in the log, and not in its queue"
    VIOLATION = "VIOLATION"


class Case(NamedTuple):
    """One way to damage one file."""

    path: Path
    """The path from the store's root."""
    how: str
    at: int


@dataclass
class Seen:
    """The messages and figures that a broker serves."""

    queues: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    """Records by topic and queue id, in the order of the queue."""
    waiting: dict[bytes, int] = field(default_factory=dict)
    """Number of pending messages by body."""
    committed: int = -1
    by_key: int = 0
    """Number of records found by a key of the index."""
    log_end: int = 0
    damaged: int = 0
    """Number of records set aside."""
    topics: int = 0
    """Number of known topics."""
    unchecked: int = 0
    """Number of records whose body does not match its checksum."""
    wrong: list[str] = field(default_factory=list)


class Telling(logging.Handler):
    """Keeps the broker's warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


# The store ------------------------------------------------------------------------------------------------------------


def build(folder: Path) -> int:
    """Create a store that was killed after a checkpoint, and return the time.

    It has 200 messages, 48 timers and 24 messages in blocks. Half of the delayed messages are delivered.
    """
    with BrokerHarness(folder, **SETTINGS) as harness:
        model = PipelineModel(harness)
        for i in range(PLAIN):
            harness.send(TOPICS[i % 2], b"plain %d " % i * 12, queue_id=i % 3, properties={"KEYS": f"key{i}"})
            if i % 4 == 0 and i < 4 * WAITING:
                harness.send(TOPICS[0], b"soon %d" % i, delay_ms=1500 + i)
            if i % 8 == 0 and i < 4 * WAITING:
                harness.send(TOPICS[1], b"soon from a block %d" % i, properties={props.DELAY_IN_SECONDS: "2"})
        harness.advance(4000, model.work, 500)
        for i in range(WAITING):
            harness.send(TOPICS[1], b"waits %d" % i, delay_ms=9000 + i * 100)
            if i % 2 == 0:
                seconds = {props.DELAY_IN_SECONDS: str(8 + i // 8)}
                harness.send(TOPICS[0], b"waits in a block %d" % i, properties=seconds)
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        harness.broker.parts.groups.get(GROUP)
        harness.ask_code(code, consumerGroup=GROUP, topic=TOPICS[0], queueId=0, commitOffset=7)
        harness.advance(5500, model.work, 500)
        harness.send(TOPICS[0], b"after the checkpoint", queue_id=0)
        harness.tick()
        harness.crash()
        return harness.now_ms


def kind_of(path: Path) -> str:
    """Return the kind of a file, from its path below the store's root."""
    if path.parts[0] == BLOCKS_FOLDER:
        return f"block {path.parts[2]}"
    if TIMER_TOPIC in path.parts:
        return "timer queue"
    return path.parts[0] if len(path.parts) > 1 and path.parts[0] != "config" else path.name


def cases(root: Path, every: int, only: tuple[str, ...] = (), how: str = "") -> Iterator[Case]:
    """Yield the cases: each `every`-th byte of one file per kind.

    It is the largest file of the kind; of blocks it is that of the newest one.
    """
    chosen: dict[str, Path] = {}
    for path in sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file()):
        best = chosen.get(kind_of(path))
        is_newer = path.parts[0] == BLOCKS_FOLDER
        if best is None or is_newer or written(root / best) < written(root / path):
            chosen[kind_of(path)] = path
    for kind, path in sorted(chosen.items()):
        if only and kind not in only:
            continue
        end = written(root / path)
        if how in ("", "torn"):
            yield from (Case(path, "torn", at) for at in range(max(0, end - TAIL_BYTES), end, every))
        if how in ("", "flipped"):
            yield from (Case(path, "flipped", at) for at in range(max(0, end - FLIPPED_BYTES), end, every))


def written(path: Path) -> int:
    """Return the bytes of a file up to the last nonzero one; all bytes of a file that is replaced as a whole."""
    raw = path.read_bytes()
    return len(raw.rstrip(b"\0")) if is_mapped(path) else len(raw)


def is_mapped(path: Path) -> bool:
    """Return whether the broker maps the file, which then keeps its size."""
    return path.name.isdigit() or path.name in ("timerwheel", "timermark") or path.parts[-3:-2] == (BLOCKS_FOLDER,)


def damaged(root: Path, case: Case) -> bytes:
    """Return the damaged content of a file of a store."""
    path = root / case.path
    raw = bytearray(path.read_bytes())
    if case.how == "flipped":
        raw[case.at] ^= 1 << case.at % 8
    elif is_mapped(path):
        raw[case.at :] = bytes(len(raw) - case.at)
    else:
        del raw[case.at :]
    return bytes(raw)


# The broker's reaction
# ------------------------------------------------------------------------------------------------


def read_store(harness: BrokerHarness) -> Seen:
    """Return everything that a broker serves."""
    log = harness.broker.parts.store.log
    seen = Seen(log_end=log.end, damaged=len(log.damaged))
    seen.topics = sum(harness.broker.parts.topics.get(topic) is not None for topic in TOPICS)
    for topic in TOPICS:
        for queue_id in range(4):
            seen.queues[topic, queue_id] = list(_read_queue(harness, topic, queue_id, seen))
    broker = harness.broker
    for stream in broker.parts.timer.ends():
        for units in broker.parts.timer.queue_of(stream).chunks():
            _count_waiting(harness, stream, log, units, seen)
    for block in broker.parts.blocks:
        for _, units in block.queue.chunks():
            _count_waiting(harness, block_stream(block.number), block.log, units[units["size"] > 0], seen)
    committed = broker.parts.consumer_offsets.get(GROUP, TOPICS[0], 0)
    seen.committed = -1 if committed is None else committed
    if broker.parts.index is not None:
        seen.by_key = len(broker.parts.index.find(TOPICS[0], "key8", 0, 1 << 62, 64).positions)  # type: ignore[arg-type]
    return seen


def _count_waiting(harness: BrokerHarness, stream: Stream, records: CommitLog, units: Any, seen: Seen) -> None:
    """Count the pending messages that units of a queue name."""
    for position, size in zip(units["position"].tolist(), units["size"].tolist(), strict=True):
        record = records.record_at(LogPosition(position))
        if record is None or record.size != size or not record.offset_is_possible:
            continue
        if origin_of(stream, record.queue_offset) not in harness.broker.parts.timer.pending.done:
            payload = record.message.body
            seen.waiting[payload] = seen.waiting.get(payload, 0) + 1


@functools.lru_cache(maxsize=10_000)
def body_of(raw: bytes) -> tuple[bytes, bool]:
    """Return the body of a record, and whether it matches its checksum. Raises RecordError.

    The result is cached, because most cases serve the same records.
    """
    record = decode_record(raw)
    return record.message.body, record.body_is_intact


def _read_queue(harness: BrokerHarness, topic: str, queue_id: int, seen: Seen) -> Iterator[bytes]:
    at = 0
    for _ in range(1000):
        answer = harness.ask(harness.pull_command(topic, queue_id, at, maxMsgNums=1000))
        following = int(answer.ext.get("nextBeginOffset", "0"))
        if answer.code == ResponseCode.PULL_OFFSET_MOVED and following > at:
            at = following
            continue
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and following > at:
            at = following
            continue
        if answer.code != ResponseCode.SUCCESS:
            return
        raw, start = bytes(answer.body), 0
        while start < len(raw):
            size = int.from_bytes(raw[start : start + 4], "big")
            try:
                _, is_intact = body_of(raw[start : start + size])
            except RecordError as error:
                seen.wrong.append(f"{topic}/{queue_id}#{at} and behind are served, and are no records: {error}")
                break
            seen.unchecked += not is_intact
            yield raw[start : start + size]
            start += size
        at = following
    seen.wrong.append(f"{topic}/{queue_id} does not end")


class Sweep:
    """Runs cases. `counts` has the classes by kind of file and way of damage."""

    def __init__(self, scratch: Path) -> None:
        self._good = scratch / "good"
        self._scratch = scratch / "case"
        self._now_ms = build(self._good)
        self.counts: defaultdict[tuple[str, str], Counter[Class]] = defaultdict(Counter)
        self.stories: defaultdict[tuple[str, str, Class], list[str]] = defaultdict(list)
        self.untold: Counter[Class] = Counter()
        """Cases with an effect of which the broker did not warn."""
        self._tried: dict[bytes, tuple[Class, str]] = {}
        """The effects of damaged files, by a digest of each."""
        self._run_on: dict[bytes, Seen] = {}
        """The content of recovered stores after all timers are released, by `_mark`."""
        self._ends: dict[str, Seen] = {}
        """Each different content once, because there are few."""
        self._expected, self._later = self._open(None)

    @property
    def root(self) -> Path:
        return self._good

    def run(self, chosen: Iterator[Case], tell: Callable[[str], None]) -> None:
        last = ""
        for case in chosen:
            kind = kind_of(case.path)
            if kind != last:
                tell(kind)
                last = kind
            mark = blake2b(f"{case.path} ".encode() + damaged(self._good, case)).digest()
            if mark not in self._tried:
                self._tried[mark] = self.judge(case)
            found, story = self._tried[mark]
            self.counts[kind, case.how][found] += 1
            if found is Class.VIOLATION:
                tell(f"  {case.how} at byte {case.at}: {story}")
            stories = self.stories[kind, case.how, found]
            if story and len(stories) < EXAMPLES:
                stories.append(f"byte {case.at}: {story}")

    @property
    def violations(self) -> int:
        return sum(counts[Class.VIOLATION] for counts in self.counts.values())

    @property
    def ways(self) -> int:
        """The number of different recovered stores that ran on."""
        return len(self._run_on)

    def _open(self, case: Case | None) -> tuple[Seen, Seen]:
        """Return what a broker on a copy serves at once, and after all timers are released.

        Raises the broker's errors.
        """
        shutil.rmtree(self._scratch, ignore_errors=True)
        shutil.copytree(self._good, self._scratch)
        if case is not None:
            (self._scratch / case.path).write_bytes(damaged(self._good, case))
        with BrokerHarness(self._scratch, clock=ManualClock(self._now_ms), **SETTINGS | RARELY) as harness:
            first = read_store(harness)
            mark = self._mark(first)
            if mark not in self._run_on:
                harness.advance(WAIT_MS, PipelineModel(harness, "after").work, TURNS_MS)
                later = read_store(harness)
                self._run_on[mark] = self._ends.setdefault(blake2b(repr(later).encode()).hexdigest(), later)
            return first, self._run_on[mark]

    def _mark(self, first: Seen) -> bytes:
        """Return a digest that is equal for recovered stores with equal files and equal served messages."""
        digest = blake2b(repr(first).encode())
        for path in sorted(path for path in self._scratch.rglob("*") if path.is_file()):
            digest.update(f"{path.relative_to(self._scratch)} {path.stat().st_size};".encode())
            digest.update(path.read_bytes())
        return digest.digest()

    def judge(self, case: Case) -> tuple[Class, str]:
        """Return the class of a case's effect, and a description."""
        telling = Telling()
        logging.getLogger("wheelmq").addHandler(telling)
        try:
            with _no_longer_than(CASE_S):
                first, later = self._open(case)
        except (OSError, BodyError, ConfigError) as error:
            text = str(error)
            if isinstance(error, TimeoutError) or str(self._scratch) not in text:
                return Class.VIOLATION, f"{type(error).__name__}: {text}"
            return Class.REFUSED, text.replace(str(self._scratch), "")
        except Exception as error:
            return Class.VIOLATION, f"{type(error).__name__}: {error}"
        finally:
            logging.getLogger("wheelmq").removeHandler(telling)
        first.damaged += sum(SET_ASIDE_TOLD in line for line in telling.lines)
        found, story = self._compare(first, later)
        told = [line for line in telling.lines if not any(text in line for text in NOT_OF_DAMAGE)]
        if found is not Class.AS_BEFORE and not told:
            self.untold[found] += 1
        return found, story + (f"; told: {told[0][:160]}" if told else "; not told")

    def _compare(self, first: Seen, later: Seen) -> tuple[Class, str]:
        """Return the class of the served messages. The worst class has precedence."""
        wrong = [*first.wrong, *later.wrong]
        if wrong:
            return Class.VIOLATION, wrong[0]
        if first.unchecked:
            return Class.UNCHECKED, f"{first.unchecked} behind the snapshot"
        bodies, expected = _bodies(later), _bodies(self._later)
        invented = set(bodies) - set(expected)
        if invented:
            return Class.VIOLATION, f"invented: {sorted(invented)[0][:40]!r}"
        again = [body for body, count in bodies.items() if count > expected[body]]
        if again:
            return Class.REPEATED, f"{len(again)}, such as {again[0][:40]!r}"
        missing = sum((expected - bodies).values())
        before = self._expected
        if missing == 0:
            same = first.queues == before.queues and first.committed == before.committed
            if same and first.by_key == before.by_key:
                return Class.AS_BEFORE, ""
            return Class.UNSEEN, f"committed {first.committed}, by key {first.by_key}"
        text = f"{missing} messages fewer"
        if first.topics < before.topics:
            return Class.NO_TOPIC, text
        if first.log_end < before.log_end:
            return Class.SHORTER, text
        if missing == first.damaged:
            return Class.SET_ASIDE, text
        return Class.OUT_OF_SIGHT, text


def _bodies(seen: Seen) -> Counter[bytes]:
    found = Counter(seen.waiting)
    for records in seen.queues.values():
        found.update(body_of(raw)[0] for raw in records)
    return found


@contextlib.contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside the block if a broker hangs."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"a broker hangs for {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def report(sweep: Sweep, seconds: float) -> list[str]:
    total = sum(sum(counts.values()) for counts in sweep.counts.values())
    lines = [f"{total} damaged stores in {seconds:.0f} s, {sweep.ways} of them different once recovered and run on"]
    lines += [f"  not told: {found.value:28s} {count:7d}" for found, count in sorted(sweep.untold.items())]
    for (kind, how), counts in sorted(sweep.counts.items()):
        lines.append(f"{kind}, {how}: {sum(counts.values())}")
        for found, count in sorted(counts.items()):
            lines.append(f"  {found.value:38s} {count:7d}")
            lines += [f"      {story}" for story in sweep.stories[kind, how, found] if found is not Class.AS_BEFORE]
    lines.append("FAILED" if sweep.violations else "everything was recovered, refused or has a name")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.crash.sweeps", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th byte only")
    parser.add_argument("--only", default="", metavar="KIND,KIND", help="commitlog, consumequeue, index, timerlog, ...")
    parser.add_argument("--how", choices=("torn", "flipped"), default="")
    options = parser.parse_args()
    logging.getLogger("wheelmq").addHandler(logging.NullHandler())
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="wheelmq-sweeps-") as folder:
        sweep = Sweep(Path(folder))
        only = tuple(filter(None, options.only.split(",")))
        sweep.run(cases(sweep.root, options.every, only, options.how), lambda text: print(text, flush=True))
    print("\n".join(report(sweep, time.monotonic() - began)))
    return 1 if sweep.violations else 0


if __name__ == "__main__":
    sys.exit(main())
