"""Requests rejected as busy: the limits of request groups, the time that requests wait, and the log."""

from __future__ import annotations

import logging
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from wheelmq.broker.admission import overload
from wheelmq.broker.admission.overload import ADMIN, GROUPS, SEND, UNBOUNDED, RequestGroup
from wheelmq.broker.handler_table import BoundHandler
from wheelmq.broker.handlers import HANDLERS
from wheelmq.broker.schema import BROKER
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.system.rate_limited_log import EVERY_S
from wheelmq.testing.harness import BrokerHarness

ALL = {value for value in vars(overload).values() if isinstance(value, RequestGroup)}
NAMES = BROKER.groups["queues"]
"""The names of the settings of [queues], by key."""
BUSY = ResponseCode.SYSTEM_BUSY
OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"
REJECT = "[REJECTREQUEST]system busy, start flow control for a while"
ONE_OF = {group: code for code, group in GROUPS.items() if code in HANDLERS} | {
    ADMIN: RequestCode.GET_BROKER_RUNTIME_INFO
}
"""One supported code of each group that has any."""


def request(group: RequestGroup) -> Command:
    """Return a request of `group`, whatever its answer."""
    return Command(code=ONE_OF[group], version=479)


def code_and_remark(answer: Command | None) -> tuple[int, str | None]:
    assert answer is not None
    return answer.code, answer.remark


def hang(harness: BrokerHarness, ms: int) -> None:
    """Begin a round whose first request takes `ms` milliseconds."""
    harness.broker.parts.ticks.begin()
    harness.clock.advance(ms)


@pytest.mark.parametrize("group", sorted(ONE_OF), ids=lambda group: group.name)
class TestGroups:
    def test_the_queue_of_a_group_is_limited(self, tmp_path: Path, group: RequestGroup) -> None:
        with BrokerHarness(tmp_path, **{NAMES[group.capacity]: 2}) as harness:
            asked = [harness.submit(request(group), harness.connect()) for _ in range(4)]
            harness.tick()
            remarks = [code_and_remark(one.answer)[1] for one in asked]
            assert OVERLOAD not in remarks[:2]
            assert [code_and_remark(one.answer) for one in asked[2:]] == [(BUSY, OVERLOAD)] * 2
            assert harness.broker.dispatch.counts["overloaded"] == 2
            asked_again = harness.submit(request(group))  # another round
            harness.tick()
            assert code_and_remark(asked_again.answer)[1] != OVERLOAD

    def test_a_request_that_waited_too_long_is_rejected(self, tmp_path: Path, group: RequestGroup) -> None:
        chosen: dict[str, Any] = {} if group.wait_ms is None else {NAMES[group.wait_ms]: 300}
        with BrokerHarness(tmp_path, **chosen) as harness:
            for waits_ms in (299, 300):
                hang(harness, waits_ms)
                asked = harness.submit(request(group))
                harness.tick()
                remark = (
                    "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
                    "period in queue: 300ms, size of queue: 0"
                )
                is_busy = code_and_remark(asked.answer) == (BUSY, remark)
                assert is_busy == (group.wait_ms is not None and waits_ms == 300)
                assert harness.broker.dispatch.counts["timed_out"] == is_busy

    def test_groups_do_not_share_a_queue(self, tmp_path: Path, group: RequestGroup) -> None:
        with BrokerHarness(tmp_path, **{NAMES[other.capacity]: 1 for other in ALL - {group}}) as harness:
            for other in set(ONE_OF) - {group}:
                harness.submit(request(other))
            asked = [harness.submit(request(group)) for _ in range(3)]
            harness.tick()
            assert all(code_and_remark(one.answer)[1] != OVERLOAD for one in asked)


@pytest.mark.parametrize("code", sorted(UNBOUNDED), ids=lambda code: code.name)
def test_no_limit_rejects_changes_of_settings_or_the_pipeline(tmp_path: Path, code: RequestCode) -> None:
    least: dict[str, Any] = {NAMES[group.wait_ms]: 10 for group in ALL if group.wait_ms}
    with BrokerHarness(tmp_path, **least, **{NAMES[group.capacity]: 1 for group in ALL}) as harness:
        harness.submit(request(ADMIN), harness.connect())
        for _ in range(3):
            hang(harness, 20_000)
            asked = harness.submit(Command(code=code, version=479))
            harness.tick()
            assert code_and_remark(asked.answer)[0] != BUSY
        hang(harness, 10)
        timed_out = harness.submit(request(ADMIN))
        harness.tick()
        assert code_and_remark(timed_out.answer)[0] == BUSY


def test_the_pipeline_is_in_no_group() -> None:
    assert {code for code in RequestCode if 9100 <= code < 9200} < UNBOUNDED
    assert not UNBOUNDED & GROUPS.keys()


def test_every_limit_of_a_group_is_a_setting() -> None:
    assert all({group.capacity, group.wait_ms or group.capacity} <= NAMES.keys() for group in ALL)


def test_unknown_codes_belong_to_the_group_of_the_default_processor(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, admin_broker_thread_pool_queue_capacity=1) as harness:
        asked = [harness.submit(Command(code=987_654)) for _ in range(2)]
        harness.tick()
        assert [code_and_remark(one.answer) for one in asked] == [
            (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 987654 not supported"),
            (BUSY, OVERLOAD),
        ]
        assert harness.broker.dispatch.counts == {"unsupported": 1, "overloaded": 1}


def test_the_default_processor_can_be_replaced(harness: BrokerHarness) -> None:
    harness.broker.dispatch.default_processor = BoundHandler(lambda request: Command(code=0, remark="mine"), ())
    assert code_and_remark(harness.ask(Command(code=987_654))) == (0, "mine")


def test_rejected_oneway_requests_get_no_answer(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, send_thread_pool_queue_capacity=1) as harness:
        for _ in range(3):
            harness.submit(harness.send_command("T"), oneway=True)
        harness.tick()  # an answer to one of them would be an error of the connection
        assert harness.bodies("T") == [b"body"]
        assert harness.broker.dispatch.counts["overloaded"] == 2


def test_sends_after_a_hanging_put_are_rejected(harness: BrokerHarness) -> None:
    """Other requests are served, because they do not write."""
    hang(harness, 1001)
    asked = [harness.submit(request(group)) for group in (SEND, ADMIN)]
    harness.tick()
    assert code_and_remark(asked[0].answer) == (BUSY, REJECT)
    assert code_and_remark(asked[1].answer)[0] == 0
    assert harness.broker.dispatch.counts["rejected"] == 1


def test_no_send_times_out_without_fast_failure(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, broker_fast_failure_enable=False) as harness:
        hang(harness, 999)
        assert harness.send("T").code == 0


def test_requests_of_a_peer_that_does_not_read_wait_and_time_out(harness: BrokerHarness) -> None:
    """The broker serves them after the peer has read its answers. Its sends are too old by then."""
    connection = harness.connect()
    harness.send("T")
    connection.is_full = True
    late = harness.send_command("T", b"late")
    late.opaque = connection.next_opaque()
    harness.feed(frame.encode(late), connection)
    harness.tick()
    harness.clock.advance(250)
    connection.is_full = False
    harness.feed(b"", connection)
    harness.tick()
    assert harness.broker.dispatch.counts["timed_out"] == 1
    assert harness.bodies("T") == [b"body"]
    asked = harness.submit(harness.send_command("T", b"anew"), connection)
    harness.tick()
    assert code_and_remark(asked.answer) == (0, None)


def test_rejections_are_logged_at_an_interval(harness: BrokerHarness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    def reject(count: int) -> None:
        hang(harness, 1001)
        for _ in range(count):
            harness.submit(harness.send_command("T"))
        harness.tick()

    reject(5)
    reject(3)
    harness.clock.advance(int(EVERY_S * 1000))
    reject(2)
    said = [record.getMessage() for record in caplog.records if record.name == overload.log.name]
    assert len(said) == 2
    assert REJECT in said[0] and "10.0.0.1" in said[0] and "times" not in said[0]
    assert said[1].endswith("(and 7 times since the last such line)")


@pytest.mark.parametrize(
    ("part", "step", "codes"), [("file_upkeep.snapshots", "poll", [0, 0, 0]), ("store", "dispatch", [0, BUSY, BUSY])]
)
def test_sends_are_rejected_after_a_failed_round_but_not_a_failed_tick(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, part: str, step: str, codes: list[int]
) -> None:
    """A failed step of the tick delays no request. While queues get no units, sends are rejected."""

    def fail(*_: object) -> None:
        raise ValueError("unforeseen")

    harness.send("T")
    monkeypatch.setattr(attrgetter(part)(harness.broker.parts), step, fail)
    found = []
    for _ in codes:
        asked = harness.submit(harness.send_command("T"))
        with pytest.raises(ValueError, match="unforeseen"):
            harness.tick()
        harness.clock.advance(2000)
        asked.connection.flush()
        found.append(code_and_remark(asked.answer)[0])
    assert found == codes


def test_the_beginning_of_a_frame_starts_no_round(harness: BrokerHarness) -> None:
    """A peer that sends the rest slowly, or closes, must not make other requests time out."""
    harness.send("T")
    harness.settle()
    harness.broker.next_tick_ms()
    slow, closing = harness.connect(), harness.connect()
    harness.feed(b"\0\0\1", slow)
    harness.end_round()
    command = harness.send_command("T")
    command.opaque = closing.next_opaque(oneway=False)
    harness.feed(frame.encode(command) + b"\0\0\0\1", closing)
    assert not closing.is_open
    harness.end_round()
    harness.clock.advance(60_000)
    asked = harness.submit(harness.send_command("T"))
    harness.end_round()
    assert code_and_remark(asked.answer)[0] == ResponseCode.SUCCESS
    assert harness.broker.parts.ticks.wall.greatest < 1
