"""The batches of a query group: they take the plans that come in time, and each turn succeeds or fails alone."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from tests.modelled_broker import DirectCaller, ModelledBroker
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError
from wheelmq.spark import member, query_group
from wheelmq.spark.broker_turns import RENEW_S
from wheelmq.spark.group_ranges import leases_of, parts_of
from wheelmq.spark.member import REST_S, STRIKES_MAX, BrokerMember
from wheelmq.spark.query_group import ASKED_S, QueryGroup, TurnBatch

TERMS: dict[str, Any] = {"broker": "b", "precision_ms": 1000, "roll_window_slots": 100, "levels_ms": []}
PLAN: dict[str, Any] = {
    "broker": "b",
    "write_ms": 0,
    "index_from": 0,
    "index_to": 10,
    "walk_after_ms": 0,
    "walk_through_ms": 5000,
    "walk_rows": 5,
    "timer_log_end": 100,
    "now_ms": 0,
    "queues": [],
    "blocks": None,
}
HOLDER: dict[str, Any] = {"name": "p", "holder_id": "id"}


class Group:
    """A group with members for models of brokers."""

    def __init__(self, *names: str, **options: Any) -> None:
        self.group = QueryGroup(wait_s=1.0, **options)
        self.said: list[tuple[str, str]] = []
        self.brokers = {name: ModelledBroker(TERMS, PLAN, pace_s=0.0) for name in names}
        for name, broker in self.brokers.items():
            self.group.add(self.join(name, broker))

    def say(self, event: str, **fields: object) -> None:
        self.said.append((event, str(fields["broker"])))

    def join(self, name: str, broker: ModelledBroker) -> BrokerMember:
        return BrokerMember(name, DirectCaller(broker), self.say, **HOLDER)

    async def opened(self) -> Group:
        for one in self.group.members.values():
            await one.maintain()
        return self

    async def batch(self) -> TurnBatch:
        batch = await self.group.next_batch()
        assert batch is not None
        return batch

    def summaries(self, batch: TurnBatch, **problems: str) -> list[dict[str, Any]]:
        """Upload the rows of a batch, and return the summaries of its tasks."""
        found = []
        for number, turning in batch.turns.items():
            name = turning.member.broker
            one = {"member": number, "turn": turning.plan["turn"], "kind": "index", "part": 0, "attempt": number}
            self.brokers[name]._uploads["index", 0, number] = 15
            found.append({**one, "chunks": 1, "rows": 15, "crc": 0, "problem": problems.get(name)})
        return found

    async def commit(self, **problems: str) -> TurnBatch:
        batch = await self.batch()
        await self.group.commit(batch.sequence, self.summaries(batch, **problems))
        return batch

    def turns(self) -> dict[str, int]:
        return {name: broker.turn for name, broker in self.brokers.items()}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_group, "PERIOD_S", 0.0)
    monkeypatch.setattr(member, "REST_S", 0.05)
    assert REST_S > 0.05


def in_loop(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


def names(batch: TurnBatch) -> set[str]:
    return {turning.member.broker for turning in batch.turns.values()}


def test_a_batch_has_the_plans_of_all_members() -> None:
    async def story() -> None:
        group = await Group("a", "b", "c").opened()
        batch = await group.commit()
        assert names(batch) == {"a", "b", "c"} and group.turns() == {"a": 1, "b": 1, "c": 1}
        assert list(batch.offset()["plans"]) == ["a", "b", "c"]
        again = await group.batch()
        assert again.sequence > batch.sequence and again.offset() != batch.offset()

    in_loop(story)


def test_the_offset_has_no_token() -> None:
    async def story() -> None:
        group = await Group("a").opened()
        batch = await group.batch()
        assert group.brokers["a"].token not in json.dumps(batch.offset())
        assert group.brokers["a"].token in {lease.token for lease in leases_of(batch).values()}
        (part,) = parts_of(batch, parallelism=2, wait_s=1.0, over_the_wire=False, tls=None)
        assert [one[0] for one in part["ranges"]] == ["index", "walk"] and part["member"] in batch.turns

    in_loop(story)


def test_a_batch_waits_for_no_silent_broker() -> None:
    async def story() -> None:
        group = await Group("a", "b").opened()
        group.brokers["b"].is_silent = True
        began_s = time.monotonic()
        for turn in range(1, 4):
            assert names(await group.commit()) == {"a"}
            assert group.turns() == {"a": turn, "b": 0}
        assert time.monotonic() - began_s < 3 * ASKED_S
        group.brokers["b"].is_silent = False
        while group.turns()["b"] == 0:
            await group.commit()

    in_loop(story)


def test_there_is_no_batch_without_a_plan() -> None:
    async def story() -> None:
        group = await Group("a").opened()
        group.brokers["a"].template = None
        assert await group.group.next_batch() is None

    in_loop(story)


def test_a_problem_of_one_turn_does_not_affect_the_others() -> None:
    async def story() -> None:
        group = await Group("a", "b").opened()
        slow = group.group.members["b"]
        for strike in range(1, STRIKES_MAX + 1):
            assert not slow.is_slow
            assert names(await group.commit(b="CallError: no answer")) == {"a", "b"}
            assert group.turns() == {"a": strike, "b": 0}
        assert slow.is_slow and slow.lease is None, "it moves to the slow group, and its late tasks are rejected"
        assert group.said.count(("query ended", "b")) == 1 and ("query ended", "a") not in group.said

    in_loop(story)


def test_a_slow_member_turns_again_after_a_rest() -> None:
    async def story() -> None:
        group = await Group("a", members_max=1).opened()
        slow = group.group.members["a"]
        for _ in range(STRIKES_MAX + 1):
            await group.opened()
            while not slow.can_turn():
                await slow.ask_plan()
            await group.commit(a="CallError: no answer")
        assert slow.is_slow and not slow.wants_plan()
        await group.opened()
        while slow.is_slow:
            if slow.wants_plan():
                await slow.ask_plan()
            if slow.can_turn():
                await group.commit()
            await asyncio.sleep(0)
        assert group.turns() == {"a": 1}

    in_loop(story)


@pytest.mark.parametrize("during", ["before", "in"])
def test_a_lost_lease_ends_the_membership_and_is_no_failure(during: str) -> None:
    async def story() -> None:
        group = await Group("a", "b").opened()
        if during == "before":
            group.brokers["b"].lose_lease()
        batch = await group.batch()
        if during == "in":
            group.brokers["b"].lose_lease()
        await group.group.commit(batch.sequence, group.summaries(batch))
        lost = group.group.members["b"]
        assert lost.lease is None and not lost.is_slow and group.turns() == {"a": 1, "b": 0}
        assert ("query ended", "a") not in group.said
        await lost.maintain()
        assert names(await group.commit()) == {"a", "b"} and group.turns() == {"a": 2, "b": 1}
        assert group.brokers["b"].opened == 2 and group.brokers["a"].opened == 1

    in_loop(story)


class ChangingCaller(DirectCaller):
    """Changes the answers with a plan, as a broker of another version does."""

    def __init__(self, broker: ModelledBroker, change: Callable[[dict[str, Any]], object]) -> None:
        super().__init__(broker)
        self._change = change

    async def call(self, command: Command, timeout_s: float = 5.0) -> Command:
        answer = await super().call(command, timeout_s)
        if command.code == RequestCode.WMQ_PIPELINE_PLAN and answer.body:
            answer.body = msgspec.json.encode(self._change(msgspec.json.decode(answer.body)))
        return answer


MALFORMED_PLANS: dict[str, Callable[[dict[str, Any]], object]] = {
    "no turn": lambda plan: {name: value for name, value in plan.items() if name != "turn"},
    "a large turn": lambda plan: {**plan, "turn": 1 << 63},
    "a text": lambda plan: {**plan, "walk_through_ms": "soon"},
    "no object": lambda plan: [plan],
}


@pytest.mark.parametrize("change", MALFORMED_PLANS.values(), ids=MALFORMED_PLANS.keys())
def test_a_malformed_plan_ends_only_the_lease_of_its_broker(change: Callable[[dict[str, Any]], object]) -> None:
    async def story() -> None:
        group = await Group("a").opened()
        other = BrokerMember("b", ChangingCaller(ModelledBroker(TERMS, PLAN, pace_s=0.0), change), group.say, **HOLDER)
        await other.maintain()
        group.group.add(other)
        assert other.lease is not None
        assert names(await group.commit()) == {"a"} and group.turns() == {"a": 1}
        assert other.lease is None and ("query ended", "b") in group.said

    in_loop(story)


@pytest.mark.parametrize("wrong", [{"precision_ms": 0}, {"roll_window_slots": 1 << 60}, {"roll_window_slots": "x"}])
def test_a_lease_with_terms_that_the_driver_cannot_use_is_not_taken(wrong: dict[str, Any]) -> None:
    async def story() -> None:
        group = Group("a")
        group.brokers["a"].terms = {**TERMS, **wrong}
        await group.opened()
        assert group.group.members["a"].lease is None and ("waiting", "a") in group.said

    in_loop(story)


class RenewingCaller(DirectCaller):
    """Answers a renewal with a time that is no number."""

    renewals = 0

    async def call(self, command: Command, timeout_s: float = 5.0) -> Command:
        answer = await super().call(command, timeout_s)
        if command.code == RequestCode.WMQ_PIPELINE_RENEW:
            self.renewals += 1
            answer.ext["quietMs"] = "long"
        return answer


def test_a_malformed_quiet_time_does_not_end_the_lease() -> None:
    async def story() -> None:
        now_s = [time.monotonic()]
        caller = RenewingCaller(ModelledBroker(TERMS, PLAN))
        made = BrokerMember("a", caller, lambda event, **fields: None, now_s=lambda: now_s[0], **HOLDER)
        await made.maintain()
        lease, progressed_s = made.lease, made.progressed_s
        now_s[0] += 2 * RENEW_S
        assert await made.maintain() == RENEW_S and caller.renewals == 1
        assert made.lease is lease is not None and made.progressed_s == progressed_s

    in_loop(story)


def test_a_broker_of_another_version_does_not_affect_the_others() -> None:
    async def story() -> None:
        group = await Group("a", "b").opened()
        group.brokers["b"].template = {"rows": 3}
        assert names(await group.commit()) == {"a"}
        assert group.group.members["b"].lease is None
        group.brokers["b"].terms = {}
        while ("waiting", "b") not in group.said:
            await group.opened()
            await asyncio.sleep(0)
        assert group.group.members["b"].lease is None

    in_loop(story)


def test_a_rejected_commit_counts_as_a_failure() -> None:
    async def story() -> None:
        group = await Group("a", "b").opened()
        group.brokers["b"].rejects_commits = True
        for _ in range(STRIKES_MAX):
            await group.commit()
        assert group.group.members["b"].is_slow and not group.group.members["a"].is_slow
        assert group.turns() == {"a": STRIKES_MAX, "b": 0}

    in_loop(story)


def test_a_commit_waits_for_a_limited_time_in_total() -> None:
    """A connection may take that time, and the answer once more. So the limit covers both."""

    async def story() -> None:
        group = await Group("a", "b").opened()
        batch = await group.batch()
        summaries = group.summaries(batch)
        group.group.wait_s = 0.1
        group.brokers["b"].is_silent = True
        await group.group.commit(batch.sequence, summaries)
        assert group.turns() == {"a": 1, "b": 0} and not group.group.members["b"].is_slow

    in_loop(story)


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_member_that_moves_during_its_turn_makes_it_once(succeeds: bool) -> None:
    """Its own query comes up, for example. The other group takes the next turn, under the same lease."""

    async def story() -> None:
        group = await Group("a").opened()
        other = QueryGroup(wait_s=1.0)
        batch = await group.batch()
        moved = group.group.members["a"]
        group.group.remove("a")
        other.add(moved)
        assert await other.next_batch() is None, "the broker would return the plan of the running turn"
        problems = {} if succeeds else {"a": "CallError: no answer"}
        await group.group.commit(batch.sequence, group.summaries(batch, **problems))
        later = await other.next_batch()
        assert later is not None
        await other.commit(later.sequence, group.summaries(later))
        assert group.turns() == {"a": 2 if succeeds else 1}
        assert group.brokers["a"].opened == 1 and ("query ended", "a") not in group.said

    in_loop(story)


def test_the_commits_of_a_stopped_query_are_ignored() -> None:
    async def story() -> None:
        group = await Group("a").opened()
        batch = await group.batch()
        group.group.fail("it hangs")
        await group.group.commit(batch.sequence, group.summaries(batch))
        assert group.turns() == {"a": 0} and group.group.members["a"].lease is None
        await group.opened()
        later = await group.batch()
        ((_, turning),) = batch.turns.items()
        with pytest.raises(CallError, match="was stopped"):
            await group.group.commit_turn(batch.sequence, turning, [])
        group.group.note_failure(batch.sequence, turning, CallError("no answer"))
        group.group.finish(batch.sequence)
        assert group.group.batch is later and not group.group.members["a"].is_slow
        unknown = {**group.summaries(later)[0], "member": -1}
        await group.group.commit(later.sequence, [*group.summaries(later), unknown])
        assert group.turns() == {"a": 1} and group.brokers["a"].opened == 2

    in_loop(story)


def test_the_planner_of_a_stopped_query_gets_no_batch() -> None:
    async def story() -> None:
        group = await Group("a").opened()
        group.brokers["a"].template = None
        waiting = asyncio.ensure_future(group.group.next_batch())
        await asyncio.sleep(0)
        group.group.fail("it hangs")
        group.brokers["a"].template = PLAN
        await group.opened()
        assert await waiting is None and group.group.batch is None
        await group.commit()
        assert group.turns() == {"a": 1}

    in_loop(story)


def test_a_batch_is_bounded_and_the_rest_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_group, "BATCH_ROWS_MAX", 20)

    async def story() -> None:
        group = await Group("a", "b", "c").opened()
        assert [names(await group.commit()) for _ in range(3)] == [{"a"}, {"b"}, {"c"}]

    in_loop(story)


def test_the_quiet_time_ends_with_a_request_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        now_s = [time.monotonic()]
        group = await Group("a", now_s=lambda: now_s[0]).opened()
        await group.batch()
        now_s[0] += 5.0
        assert 4.5 < group.group.quiet_s() <= 5.0
        group.group.members["a"].progressed_s = now_s[0] - 1.0
        assert group.group.quiet_s() == pytest.approx(1.0)

    in_loop(story)
