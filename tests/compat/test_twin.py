"""The broker answers random requests as Apache RocketMQ does (compat/twin)."""

from __future__ import annotations

import os

import pytest

from compat.frames.wire import frame
from compat.twin.compare import alike, normal
from compat.twin.generate import sequence
from compat.twin.run import SERVED, brokers, run
from compat.twin.steps import Filling, Step, read, written

IS_WHOLE = os.environ.get("COMPAT") == "whole"
COUNT = 200 if IS_WHOLE else 12


@pytest.mark.java
@pytest.mark.timeout(600)
def test_both_brokers_answer_random_sequences_alike() -> None:
    with brokers(None, None) as twins:
        found = run(twins, 1, COUNT)
        assert [one.text() for one in found] == []
        assert twins.asked > 4 * COUNT


def test_a_seed_determines_its_sequence() -> None:
    assert sequence(7, SERVED) == sequence(7, SERVED) != sequence(8, SERVED)


def test_the_sequences_cover_every_request_code() -> None:
    codes = {step.code_number for seed in range(400) for step in sequence(seed, SERVED)}
    assert {10, 11, 12, 14, 15, 17, 29, 30, 31, 33, 34, 35, 36, 37, 38, 41, 42, 46, 215, 310, 320, 370} <= codes


def test_a_written_sequence_reads_back_unchanged() -> None:
    for seed in range(50):
        steps = sequence(seed, SERVED)
        assert read(written(steps)) == steps


def test_an_invalid_line_is_rejected() -> None:
    with pytest.raises(ValueError, match="no sequence"):
        read('[{"what":1}]')


def test_placeholders_are_filled_from_earlier_answers() -> None:
    answers = {3: {"extFields": {"queueOffset": "7", "msgId": "7F00000100002A9F" + "00000000000000FF"}}}
    filling = Filling("P", 1000, answers)
    assert filling.text("{T0} {G1} {now} {now-5} <3.queueOffset> <3.position> <4.x>") == "PT0 PG1 1000 995 7 255 0"
    step = Step(5, 33, {"offset": "<3.position>", "n": 1}, "{C0}")
    header = {"code": 33, "language": "JAVA", "version": 479, "opaque": 5, "flag": 0}
    assert filling.frame(step) == frame({**header, "extFields": {"offset": "255", "n": 1}}, b"PC0")


def test_the_comparison_of_send_answers() -> None:
    filling = Filling("P", 1000, {})

    def comparable(queue: str, **fields: str) -> object:
        step = Step(1, 310, {"e": queue, "i": "UNIQ_KEY\x01K\x02"})
        return normal(
            step, {"code": 0, "extFields": {"queueId": "1", "queueOffset": "2", **fields}, "body": b""}, filling
        )

    assert (
        comparable("1", msgId="0" * 32)
        == comparable("1", msgId="F" * 32, cancelResult="none")
        != comparable("1", msgId="x")
    )
    assert comparable("1", queueOffset="2") != comparable("1", queueOffset="3")
    assert comparable("-1", queueId="2") == comparable("-1", queueId="3")
    assert comparable("1", transactionId="K") != comparable("1", transactionId="L")


def test_the_comparison_of_error_answers() -> None:
    filling = Filling("P", 1000, {})

    def comparable(code: int, remark: str) -> object:
        return normal(Step(1, 11), {"code": code, "remark": remark, "body": b""}, filling)

    assert comparable(17, "no PT1 at 10.0.0.1") == comparable(17, "no T1 at 10.0.0.2") != comparable(17, "other")
    assert alike(comparable(1, "a text"), comparable(1, "another"))
    assert not alike(comparable(1, "a text"), comparable(17, "a text"))
