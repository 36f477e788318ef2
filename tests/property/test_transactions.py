"""A stop at every failpoint that transactions pass: half messages, commits, op messages, checks, discards.

After each stop the broker starts again, and its producer continues to answer as it had decided. Each transaction then
has the one outcome of its producer: committed once, rolled back or discarded. None is lost.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import decode_record
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing import invariants
from wheelmq.testing.stops import Died, Stops

from .profiles import IS_LONG
from .twins import TwinHarness

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GROUP = "producers"
CHECKS_MAX = 4
ROUND_MS = 4000
DELAY_MS = 1500
PLANS: dict[bytes, tuple[int | None, int]] = {
    b"commit": (COMMIT, COMMIT),
    b"roll back": (ROLLBACK, ROLLBACK),
    b"commit when asked": (None, COMMIT),
    b"roll back when asked": (UNKNOWN, ROLLBACK),
    b"never known": (UNKNOWN, UNKNOWN),
    b"delayed": (COMMIT, COMMIT),
    b"delayed when asked": (None, COMMIT),
}
"""By message body: the outcome that its producer reports at once (None for no report), and its answer to a check."""
OF_DELAYS = ("blocks.", "commit.", "mark.", "release.", "delay_offsets.")
"""Failpoints that test_stops covers."""


class Life:
    """One run of a producer and a broker."""

    def __init__(self, folder: Path) -> None:
        self.acknowledged: set[bytes] = set()
        self.harness = TwinHarness(
            folder,
            flush_mode="SYNC_FLUSH",
            log_file_bytes=16_384,
            queue_file_bytes=20 * 8,
            transaction_time_out=1000,
            transaction_check_interval=ROUND_MS,
            transaction_check_max=CHECKS_MAX,
            transaction_op_batch_interval=1200,
            client_expiry_ms=10**9,
        )
        self.connection = self.harness.connect()

    def live(self) -> None:
        self.connect_producer()
        for times in range(2):
            for body in PLANS:
                self.send(body + b" %d" % times)
            self.harness.advance(2 * ROUND_MS, self.answer, 300)
            self.harness.restart(clean=times == 0)
            self.connect_producer()
        self.harness.advance((CHECKS_MAX + 1) * ROUND_MS, self.answer, 300)

    def go_on(self) -> None:
        """Start again and let every transaction end."""
        self.harness.start()
        self.connect_producer()
        assert max(Counter(self.delivered()).values(), default=0) <= 1
        self.harness.advance((CHECKS_MAX + 3) * ROUND_MS, self.answer, 300)

    def connect_producer(self) -> None:
        """Connect, and register as a producer of the group."""
        self.connection = self.harness.connect()
        body = msgspec.json.encode({"clientID": "c", "producerDataSet": [{"groupName": GROUP}]})
        self.harness.ask_code(RequestCode.HEART_BEAT, body, self.connection)

    def send(self, body: bytes) -> None:
        properties = {props.TRAN_MSG: "true", props.PRODUCER_GROUP: GROUP, props.UNIQ_KEY: body.decode()}
        delay_ms = DELAY_MS if body.startswith(b"delayed") else None
        sent = self.harness.send("T", body, properties=properties, delay_ms=delay_ms)
        assert sent.code == 0
        self.acknowledged.add(body)
        outcome, _ = plan(body)
        if outcome is not None:
            self.end(int(sent.ext["msgId"][-16:], 16), sent.ext["queueOffset"], outcome, from_check=False)

    def answer(self) -> None:
        """Answer the checks of the broker."""
        asked = [one for one in self.connection.requests if one.code == RequestCode.CHECK_TRANSACTION_STATE]
        self.connection.requests.clear()
        for one in asked:
            body = decode_record(bytes(one.body)).message.body
            _, outcome = plan(body)
            self.end(int(one.ext["commitLogOffset"]), one.ext["tranStateTableOffset"], outcome, from_check=True)

    def end(self, position: int, queue_offset: str, outcome: int, *, from_check: bool) -> None:
        ext = headers.texts(
            producerGroup=GROUP,
            tranStateTableOffset=queue_offset,
            commitLogOffset=position,
            commitOrRollback=outcome,
            fromTransactionCheck=from_check,
            msgId="",
        )
        self.harness.submit(Command(code=RequestCode.END_TRANSACTION, ext=ext), self.connection, oneway=True)
        self.harness.tick()

    def delivered(self) -> list[bytes]:
        return self.harness.bodies("T")

    def check(self) -> None:
        invariants.check(self.harness.broker)
        delivered, given_up = Counter(self.delivered()), Counter(self.harness.bodies(names.CHECK_MAX_TIME_TOPIC))
        for body in {*self.acknowledged, *delivered, *given_up}:
            _, outcome = plan(body)
            expected = {COMMIT: (1, 0), ROLLBACK: (0, 0), UNKNOWN: (0, 1)}[outcome]
            assert (delivered[body], given_up[body]) == expected, body
        transactions = self.harness.broker.parts.transactions
        assert transactions.pending.first == self.harness.broker.parts.store.queues.end(names.HALF_TOPIC, 0)
        assert not any(transactions.counts.waiting().values())


def plan(body: bytes) -> tuple[int | None, int]:
    return PLANS[body.rpartition(b" ")[0]]


def passages() -> list[str]:
    """Return the failpoints that an uninterrupted run passes."""
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder))
        with Stops() as stops:
            life.live()
        life.check()
        life.harness.crash()
        return stops.passed


def chosen(passed: list[str]) -> list[int]:
    """Return every passage in the long profile, else the first of each name and some others of transactions."""
    seen: Counter[str] = Counter()
    found = []
    for i, name in enumerate(passed):
        seen[name] += 1
        is_one_of_some = name.startswith("transaction.") and seen[name] % 13 == 0
        is_first = seen[name] == 1 and not name.startswith(OF_DELAYS)
        if IS_LONG or is_first or is_one_of_some:
            found.append(i)
    return found


def test_a_run_passes_every_failpoint_of_transactions() -> None:
    assert set(passages()) >= {
        "transaction.half",
        "transaction.ended",
        "transaction.committed",
        "transaction.op",
        "transaction.put_back",
        "transaction.asked",
        "transaction.given_up",
        "transaction.moved_on",
    }


@pytest.mark.parametrize("power", [None, 0.0, 0.5], ids=["killed", "power cut", "power cut, some pages kept"])
def test_transactions_survive_a_stop_at_any_failpoint(power: float | None) -> None:
    for die_at in chosen(passages()):
        with tempfile.TemporaryDirectory() as folder:
            life = Life(Path(folder))
            with Stops(die_at) as stops, contextlib.suppress(Died):
                life.live()
            where = f"{die_at}: {stops.passed[-1]}"
            assert len(stops.passed) == die_at + 1, where
            try:
                if life.harness.is_running:
                    life.harness.crash()
                if power is not None:
                    life.harness.disk.cut_power(life.harness.randomness, power)
                life.go_on()
                life.check()
            except Exception as error:
                raise AssertionError(f"after a stop at {where}") from error
            finally:
                if life.harness.is_running:
                    life.harness.crash()
