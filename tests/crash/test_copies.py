"""A few kills of a broker and of Spark in every test run (`make crash` has more), and faults planted in a copy.

The verdict must find each planted fault and name it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.connector import SPARK_SHARES, CopyKill, CopyOutcome, CopyRun, make_kills, report, write_figures
from tests.crash.copies import DAMAGED, NO_PLACE, CopyVerdict, Stored, judge_copies
from tests.crash.copying import Victim, read_progress

KILLS = (CopyKill("broker"), CopyKill("commit"))
BACKLOG_MAX = 60
SECONDS_MAX = 350.0
"""A weak limit, because a slow machine may have other work. Half a minute is usual."""


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_kills_of_a_broker_and_of_spark_lose_and_repeat_no_messages(tmp_path: Path) -> None:
    outcome = CopyOutcome(1, "both", "ASYNC_FLUSH", "exactly-once")
    run = CopyRun(tmp_path, KILLS, outcome, print, brokers=1, backlog_max=BACKLOG_MAX)
    asyncio.run(run.execute(SECONDS_MAX))
    print("\n".join(report(outcome)))
    assert outcome.violations == []
    assert outcome.kills == Counter(kill.what for kill in KILLS) and outcome.early.total() == 0
    assert outcome.verdict is not None and outcome.verdict.copies == outcome.verdict.messages > 100
    assert outcome.batches > len(KILLS) and outcome.events["started"] > 1


def test_the_figures_of_a_run_are_written_as_json(tmp_path: Path) -> None:
    outcome = CopyOutcome(1, "both", "ASYNC_FLUSH", "exactly-once", kills=Counter(broker=2), verdict=judged(ALL))
    write_figures(outcome, tmp_path / "figures.json")
    found = json.loads((tmp_path / "figures.json").read_text())
    assert found["kills"] == {"broker": 2} and found["verdict"]["copies"] == 4


class TestKills:
    def test_a_seed_determines_the_kills(self) -> None:
        assert make_kills(30, "both", 7, 2) == make_kills(30, "both", 7, 2) != make_kills(30, "both", 8, 2)

    @pytest.mark.parametrize(("side", "brokers", "spark"), [("broker", 200, 0), ("spark", 0, 200), ("both", 200, 200)])
    def test_each_side_has_its_number(self, side: str, brokers: int, spark: int) -> None:
        kills = make_kills(200, side, 3, 2)
        of_brokers = [kill for kill in kills if kill.what == "broker"]
        assert sum(kill.times for kill in of_brokers) == brokers and len(kills) - len(of_brokers) == spark
        assert {kill.broker for kill in of_brokers} == ({0, 1} if brokers else set())
        assert {kill.what for kill in kills} - {"broker"} == (set(SPARK_SHARES) if spark else set())

    def test_without_batches_only_their_kills_are_left_out(self) -> None:
        kills = make_kills(200, "both", 3, 2, has_batches=False)
        assert len(kills) == 400 and {kill.point for kill in kills} == {None}
        assert {kill.what for kill in kills} == {"broker", "task", "source", "driver"}

    def test_the_shares_of_spark_are_of_a_whole(self) -> None:
        assert set(SPARK_SHARES) == set(Victim) and sum(SPARK_SHARES.values()) == pytest.approx(1)


def test_progress_is_that_of_the_last_committed_batch(tmp_path: Path) -> None:
    assert read_progress(tmp_path) == (-1, -1, {})
    for name in ("offsets/9", "offsets/10", "offsets/11", "commits/9", "commits/10", "commits/.10.crc"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        number = int(path.name.strip(".cr"))
        path.write_text("v1\n{}\n" + json.dumps({"lost": 0, "queues": {"T": {"a": {"0": number, "1": 2}}}}))
    found = read_progress(tmp_path)
    assert found == (10, 11, {"a/0": 10, "a/1": 2}) and found.rows == 12


# Planted faults -------------------------------------------------------------------------------------------------------


def judged(copies: list[Stored], *, acknowledged: int = 4) -> CopyVerdict:
    """Return the verdict over the copies of four messages."""
    return judge_copies([stored(i) for i in range(4)], copies, set(range(acknowledged)))


def stored(number: int) -> Stored:
    return Stored(f"broker-a/0/{number}", 100 + number, number)


ALL = [stored(i) for i in range(4)]


def test_a_good_copy_in_any_order_has_no_violations() -> None:
    verdict = judged(ALL[::-1])
    assert verdict.violations == [] and verdict.messages == verdict.copies == 4


def test_a_message_without_a_copy_is_lost() -> None:
    assert judged(ALL[:2] + ALL[3:]).violations == ["lost 1: broker-a/0/2"]


def test_each_further_copy_is_a_duplicate() -> None:
    verdict = judged([*ALL, ALL[1], ALL[1]])
    assert verdict.violations == ["duplicated 2: broker-a/0/1, broker-a/0/1"]


def test_a_lost_message_and_a_duplicate_do_not_cancel_out() -> None:
    verdict = judged([*ALL[:3], ALL[0]])
    assert verdict.copies == verdict.messages and len(verdict.violations) == 2


@pytest.mark.parametrize("place", ["broker-a/0/4", "broker-b/0/1", NO_PLACE])
def test_a_copy_of_no_message_is_invented(place: str) -> None:
    assert judged([*ALL, Stored(place, 100, 0)]).violations == [f"invented 1: {place}"]


def test_a_copy_with_another_body_is_changed() -> None:
    assert judged([*ALL[:3], ALL[3]._replace(checksum=1)]).violations == ["changed 1: broker-a/0/3"]


def test_a_damaged_message_is_changed() -> None:
    damaged = ALL[0]._replace(checksum=DAMAGED)
    assert judge_copies([damaged], [damaged], {0}).violations == ["changed 1: broker-a/0/0"]


def test_an_acknowledged_send_without_a_message_is_found() -> None:
    verdict = judged(ALL, acknowledged=5)
    assert verdict.violations == ["unsent 1: 4"]


def test_a_send_that_was_stored_twice_has_two_copies() -> None:
    again = Stored("broker-a/1/0", 100, 0)
    verdict = judge_copies([*ALL, again], [*ALL, again], set(range(4)))
    assert verdict.violations == [] and verdict.unacknowledged == 1
