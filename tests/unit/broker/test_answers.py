"""Deferred answers: given once, by a part that is not the handler, and passed on to all who wait for them."""

from __future__ import annotations

import pytest

from wheelmq.broker.answers import Answer, Deferred, Given, Known, PeerError, reply, run_on_worker, when_known
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.workers import HeldWorker

ERROR = PeerError(ResponseCode.NO_PERMISSION, "not you")
FIRST, SECOND = reply(remark="first"), reply(remark="second")


@pytest.fixture
def answer() -> Deferred:
    return Deferred()


@pytest.fixture
def got(answer: Deferred) -> list[Given]:
    """The answers that a waiting part got."""
    got: list[Given] = []
    answer.when_given(got.append)
    return got


def test_a_callback_makes_no_answer_once_it_is_over(answer: Deferred) -> None:
    made: list[int] = []

    def make(result: int) -> Answer:
        made.append(result)
        return SECOND

    take = answer.callback(make)
    answer.give(FIRST)
    take(1)
    assert made == []


class TestGive:
    def test_an_answer_is_passed_on_once_it_is_given(self, answer: Deferred, got: list[Given]) -> None:
        assert got == [] and not answer.is_over
        answer.give(FIRST)
        assert got == [FIRST] and answer.is_over

    def test_only_the_first_answer_counts(self, answer: Deferred, got: list[Given]) -> None:
        answer.give(FIRST)
        answer.give(SECOND)
        answer.fail(ERROR)
        assert got == [FIRST]

    def test_an_exception_is_an_answer(self, answer: Deferred, got: list[Given]) -> None:
        answer.fail(ERROR)
        assert got == [ERROR] and answer.is_over

    def test_a_request_may_end_without_an_answer(self, answer: Deferred, got: list[Given]) -> None:
        answer.give(None)
        answer.give(FIRST)
        assert got == [None]

    def test_an_answer_may_be_given_before_somebody_waits(self, answer: Deferred) -> None:
        got: list[Given] = []
        answer.give(FIRST)
        answer.when_given(got.append)
        assert got == [FIRST]

    def test_functions_get_the_answer_in_their_order(self, answer: Deferred) -> None:
        got: list[tuple[int, Given]] = []
        for i in range(3):
            answer.when_given(lambda given, i=i: got.append((i, given)))  # type: ignore[misc]
        answer.give(FIRST)
        assert got == [(0, FIRST), (1, FIRST), (2, FIRST)]

    def test_a_request_may_count_as_served_before_its_answer_is_known(self, answer: Deferred) -> None:
        assert not answer.is_accepted
        answer.accept()
        assert answer.is_accepted and not answer.is_over


class TestCallback:
    def test_a_callback_gives_the_answer_for_a_result(self, answer: Deferred, got: list[Given]) -> None:
        answer.callback(lambda count: reply(count=count))(7)
        assert [isinstance(one, Exception) or one.ext for one in got if one] == [{"count": "7"}]  # type: ignore[union-attr]

    def test_an_exception_of_a_callback_is_the_answer(self, answer: Deferred, got: list[Given]) -> None:
        def fail(result: object) -> Answer:
            raise ERROR

        answer.callback(fail)(None)
        assert got == [ERROR]


class TestWorker:
    def test_a_job_answers_with_its_result(self) -> None:
        got: list[Given] = []
        worker = HeldWorker()
        run_on_worker(worker, lambda: 7, lambda result: reply(count=result)).when_given(got.append)
        worker.work()
        assert got == []
        worker.report()
        assert got == [reply(count=7)]

    def test_a_job_answers_with_its_exception(self) -> None:
        worker = HeldWorker()
        answer = run_on_worker(worker, lambda: 7, lambda result: reply(remark=str(result)))
        worker.fail_next(OSError("broken"))
        worker.run()
        got: list[Given] = []
        answer.when_given(got.append)
        assert got == [reply(remark="broken")]


class TestReply:
    """An answer that waits for the disk is known, and counts, before it is given."""

    def test_a_known_reply_counts_before_it_is_given(self) -> None:
        answer = Deferred(FIRST)
        assert answer.reply is FIRST and answer.is_accepted and not answer.is_over

    def test_another_answer_may_be_given_instead(self) -> None:
        got: list[Given] = []
        answer = Deferred(FIRST)
        answer.when_given(got.append)
        answer.give(SECOND)
        assert got == [SECOND]


class TestWhenKnown:
    def test_an_answer_is_known_at_once(self) -> None:
        assert when_known(FIRST, lambda known: SECOND) is SECOND
        assert when_known(None, lambda known: FIRST if known is None else None) is FIRST
        assert when_known(ERROR, lambda known: reply(remark=str(known))) == reply(remark="not you")

    def test_a_deferred_answer_is_known_once_it_is_given(self, answer: Deferred) -> None:
        got: list[Given] = []
        changed = when_known(answer, lambda known: SECOND if known is FIRST else None)
        assert isinstance(changed, Deferred)
        changed.when_given(got.append)
        answer.give(FIRST)
        assert got == [SECOND]

    def test_a_reply_is_known_before_it_is_given(self) -> None:
        seen: list[Known] = []

        def see(known: Known) -> Command | None:
            seen.append(known)
            return FIRST

        answer = Deferred(FIRST)
        assert when_known(answer, see) is answer and seen == [FIRST]
        answer.give(SECOND)  # it came too late
        assert seen == [FIRST]

    def test_an_answer_in_place_of_a_reply_does_not_wait(self) -> None:
        assert when_known(Deferred(FIRST), lambda known: SECOND) is SECOND

    def test_a_deferred_answer_may_be_a_reply_that_waits(self, answer: Deferred) -> None:
        got: list[Given] = []
        seen: list[Known] = []

        def see(known: Known) -> Command | None:
            seen.append(known)
            return FIRST

        changed, waiting = when_known(answer, see), Deferred(FIRST)
        assert isinstance(changed, Deferred)
        changed.when_given(got.append)
        answer.give(waiting)
        assert seen == [FIRST] and got == [waiting]


class TestThen:
    def test_an_answer_passes_through_a_function(self, answer: Deferred) -> None:
        got: list[Given] = []
        seen: list[Given] = []

        def second(given: Given) -> Answer:
            seen.append(given)
            return SECOND

        answer.then(second).when_given(got.append)
        assert seen == got == []
        answer.give(FIRST)
        assert (seen, got) == ([FIRST], [SECOND])

    def test_an_exception_passes_through_a_function(self, answer: Deferred) -> None:
        got: list[Given] = []
        answer.then(lambda given: reply(remark=str(given))).when_given(got.append)
        answer.fail(ERROR)
        assert got == [reply(remark="not you")]

    def test_an_exception_of_the_function_is_the_answer(self, answer: Deferred) -> None:
        def fail(given: Given) -> Answer:
            raise ERROR

        got: list[Given] = []
        answer.then(fail).when_given(got.append)
        answer.give(FIRST)
        assert got == [ERROR]
