"""A sample of all damage in every test run (`make sweeps` covers every byte)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.sweeps import Case, Class, Sweep, cases, kind_of, report

EVERY = 1999
"""Step between damaged bytes of a file. The first damaged byte is always included."""
KINDS = {"abort", "checkpoint", "commitlog", "consumequeue", "consumerOffset.json", "index", "lock", "timer queue"}
KINDS |= {"timercheck", "timerlog", "timermark", "timerwheel", "topics.json", "topics.json.bak"}
KINDS |= {"block checkpoint", "block log", "block queue"}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return Sweep(tmp_path_factory.mktemp("sweeps"))


@pytest.mark.timeout(400)
def test_all_damage_is_recovered_rejected_or_known(sweep: Sweep) -> None:
    sweep.run(cases(sweep.root, EVERY), print)
    print("\n".join(report(sweep, 0.0)))
    assert sweep.violations == 0
    assert {kind for kind, _ in sweep.counts} >= KINDS
    assert sum(counts[Class.AS_BEFORE] for counts in sweep.counts.values()) > 0


def body_at(sweep: Sweep, text: bytes) -> Case:
    """Return the case of a flipped bit inside a body."""
    [path] = (sweep.root / "commitlog").iterdir()
    return Case(path.relative_to(sweep.root), "flipped", path.read_bytes().index(text) + 2)


def test_a_damaged_body_before_the_snapshot_keeps_its_checksum(sweep: Sweep) -> None:
    assert sweep.judge(body_at(sweep, b"plain 100 "))[0] is Class.UNCHECKED


def test_a_damaged_body_after_the_checkpoint_is_not_served(sweep: Sweep) -> None:
    assert sweep.judge(body_at(sweep, b"after the checkpoint"))[0] in (Class.SHORTER, Class.REFUSED)


def test_damage_of_a_property_is_not_detected(sweep: Sweep) -> None:
    found, story = sweep.judge(body_at(sweep, b"key150"))
    assert found is Class.UNSEEN, story


def test_a_damaged_timer_queue_unit_does_not_delay_other_messages(sweep: Sweep) -> None:
    path = Path("consumequeue/rmq_sys_wheel_timer/0/00000000000000000000")
    found, story = sweep.judge(Case(path, "flipped", 0))
    assert found in (Class.AS_BEFORE, Class.OUT_OF_SIGHT), story


def test_a_path_has_the_kind_of_its_file() -> None:
    assert kind_of(Path("config/topics.json.bak")) == "topics.json.bak"
    assert kind_of(Path("consumequeue/rmq_sys_wheel_timer/0/00000000000000000000")) == "timer queue"
