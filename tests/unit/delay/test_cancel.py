"""Cancels by key. The tick decides each cancel, and the answer names the result."""

from __future__ import annotations

import base64

import pytest

from wheelmq.delay.cancel import Cancelled
from wheelmq.delay.timer.lookup import find_parked
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.timer import MAGIC_DELETE, TIMER_TOPIC
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing import invariants
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel


def send(harness: BrokerHarness, key: str, delay_ms: int, body: bytes = b"body", topic: str = "T") -> None:
    assert harness.send(topic, body, delay_ms=delay_ms, properties={props.UNIQ_KEY: key}).code == 0


def cancel_command(harness: BrokerHarness, key: str, topic: str = "T") -> Command:
    properties = {props.TIMER_DEL_UNIQKEY: f"{topic}+{key}"}
    return harness.send_command(topic, b"cancel", delay_ms=1000, properties=properties)


def short_cancel_command(harness: BrokerHarness, key: str, topic: str = "T") -> Command:
    return harness.send_command(topic, b"cancel", delay_ms=1000, properties={props.TIMER_DEL_UNIQKEY: key})


def cancel(harness: BrokerHarness, key: str, topic: str = "T") -> str:
    answer = harness.ask(cancel_command(harness, key, topic))
    assert answer.code == 0, answer
    return answer.ext["cancelResult"]


@pytest.fixture(params=[False, True], ids=["near lane", "pipeline"])
def model(request: pytest.FixtureRequest, harness: BrokerHarness) -> PipelineModel | None:
    """A pipeline, or none."""
    return PipelineModel(harness) if request.param else None


def test_a_pending_message_is_cancelled(harness: BrokerHarness, model: PipelineModel | None) -> None:
    work = model.work if model else None
    send(harness, "K", 8000)
    send(harness, "other", 8000, b"other")
    harness.advance(4000, work, 500)
    assert cancel(harness, "K") == Cancelled.CANCELLED
    harness.advance(10_000, work, 500)
    assert harness.bodies("T") == [b"other"]
    assert cancel(harness, "K") == Cancelled.ALREADY_SETTLED
    invariants.check(harness.broker)


def test_a_cancel_succeeds_in_the_last_millisecond(harness: BrokerHarness) -> None:
    send(harness, "K", 2000)
    harness.advance(1999)
    assert cancel(harness, "K") == Cancelled.CANCELLED
    harness.advance(5000)
    assert harness.bodies("T") == []


def test_a_cancel_at_the_due_time_is_too_late(harness: BrokerHarness) -> None:
    send(harness, "K", 2000)
    harness.advance(2000)
    assert cancel(harness, "K") == Cancelled.ALREADY_SETTLED
    assert harness.bodies("T") == [b"body"]


@pytest.mark.parametrize("key", ["nobody", "k", "K ", "", "K+K"])
def test_a_cancel_of_an_unknown_key_is_not_found(harness: BrokerHarness, key: str) -> None:
    send(harness, "K", 2000)
    assert cancel(harness, key) == Cancelled.NOT_FOUND
    assert cancel(harness, "K", topic="U") == Cancelled.NOT_FOUND
    harness.advance(2000)
    assert harness.bodies("T") == [b"body"]


def test_a_unique_key_alone_names_a_message_of_the_same_topic(
    harness: BrokerHarness, model: PipelineModel | None
) -> None:
    """Apache RocketMQ writes this form since 5.4.0."""
    work = model.work if model else None
    send(harness, "K", 8000)
    send(harness, "K", 8000, b"other topic", topic="U")
    send(harness, "A+B", 8000)
    harness.advance(4000, work, 500)
    answers = [
        harness.ask(short_cancel_command(harness, key)).ext["cancelResult"] for key in ("K", "K", "A+B", "T+", "L")
    ]
    assert answers == [
        *(Cancelled.CANCELLED, Cancelled.ALREADY_SETTLED, Cancelled.CANCELLED),
        *(Cancelled.NOT_FOUND, Cancelled.NOT_FOUND),
    ]
    harness.restart(clean=False)
    harness.advance(10_000, work, 500)
    assert (harness.bodies("T"), harness.bodies("U")) == ([], [b"other topic"])
    invariants.check(harness.broker)


def test_a_unique_key_alone_cancels_levels_and_blocks(harness: BrokerHarness) -> None:
    harness.send("T", b"level", properties={props.UNIQ_KEY: "L", props.DELAY: "3"})
    harness.send("T", b"block", properties={props.UNIQ_KEY: "B", props.DELAY_IN_SECONDS: "10"})
    for key in ("L", "B"):
        assert harness.ask(short_cancel_command(harness, key)).ext["cancelResult"] == Cancelled.CANCELLED
    harness.advance(12_000)
    assert harness.bodies("T") == []


def test_the_record_of_a_cancel_has_the_times_of_its_message(harness: BrokerHarness) -> None:
    """Apache RocketMQ obeys a cancel only in the slot of its message. Each message gets its own cancel."""
    dues = [harness.now_ms + 7777, harness.now_ms + 9123]
    for due_ms in dues:
        harness.send("T", deliver_ms=due_ms, properties={props.UNIQ_KEY: "K"})
    assert cancel(harness, "K") == Cancelled.CANCELLED
    parked = [record.message.properties for record in harness.read_queue(TIMER_TOPIC)]
    assert [props.TIMER_DEL_UNIQKEY in one for one in parked] == [False, False, True, True]
    for name in (props.TIMER_OUT_MS, props.WMQ_DUE):
        assert [one[name] for one in parked[2:]] == [one[name] for one in parked[:2]]


def test_a_cancel_cancels_all_messages_of_its_key(harness: BrokerHarness) -> None:
    send(harness, "K", 2000, b"first")
    send(harness, "K", 5000, b"second")
    assert cancel(harness, "K") == Cancelled.CANCELLED
    harness.advance(6000)
    assert harness.bodies("T") == []
    log = invariants.check(harness.broker)
    assert set(log.settled) == {0, 1}


@pytest.mark.parametrize("left", [500, 700, 900, 1100])
def test_a_full_disk_cancels_both_messages_of_a_key_or_none(
    harness: BrokerHarness, disk: SimulatedDisk, left: int
) -> None:
    """The log file ends between the two records, and there is no room for the next file."""
    file_bytes = harness.broker.parts.settings.store.log_file_bytes
    harness.send("T", delay_ms=9000, properties={props.UNIQ_KEY: "U"})
    harness.send("T", delay_ms=9000, properties={props.UNIQ_KEY: "U"})
    while file_bytes - harness.broker.parts.store.log.end % file_bytes > 30_000:
        assert harness.send("P", b"x" * 20_000).code == 0
    while (room := file_bytes - harness.broker.parts.store.log.end % file_bytes) > left + 400:
        assert harness.send("P", b"x" * 100).code == 0
    assert harness.send("P", b"x" * max(1, room - left - 270)).code == 0
    disk.is_full = lambda path: True
    answer = harness.ask(cancel_command(harness, "U"))
    pending = find_parked(harness.broker.parts.timer, harness.broker.parts.generations, "T+U")[0]
    assert (answer.code == 0, len(pending)) in ((True, 0), (False, 2))
    disk.is_full = lambda path: False
    harness.advance(10_000)
    assert len(harness.bodies("T")) == len(pending)


def test_a_cancel_succeeds_if_one_of_two_messages_is_pending(harness: BrokerHarness) -> None:
    send(harness, "K", 2000, b"first")
    send(harness, "K", 5000, b"second")
    harness.advance(2000)
    assert cancel(harness, "K") == Cancelled.CANCELLED
    harness.advance(6000)
    assert harness.bodies("T") == [b"first"]
    invariants.check(harness.broker)


def test_a_rolled_message_is_cancelled(harness: BrokerHarness) -> None:
    model = PipelineModel(harness)
    send(harness, "K", 65_000)
    harness.advance(40_000, model.work, 500)
    assert harness.broker.parts.releaser.counts["rolled"] >= 1
    assert cancel(harness, "K") == Cancelled.CANCELLED
    harness.advance(30_000, model.work, 500)
    assert harness.bodies("T") == []
    invariants.check(harness.broker)


def test_a_cancelled_message_stays_cancelled_after_a_kill(harness: BrokerHarness, model: PipelineModel | None) -> None:
    work = model.work if model else None
    send(harness, "K", 8000)
    harness.advance(4000, work, 500)
    cancel(harness, "K")
    harness.restart(clean=False)
    harness.advance(10_000, work, 500)
    assert harness.bodies("T") == []
    invariants.check(harness.broker)


def test_a_cancel_survives_a_kill_before_its_answer(harness: BrokerHarness) -> None:
    send(harness, "K", 8000)
    harness.submit(cancel_command(harness, "K"))
    harness.restart(clean=False)
    harness.advance(10_000)
    assert harness.bodies("T") == []


def test_a_cancel_writes_the_delete_unit_of_apache(harness: BrokerHarness) -> None:
    """When Apache reads the store, it finds a delete unit and decrements the count of the slot."""
    model = PipelineModel(harness)
    send(harness, "K", 8000)
    cancel(harness, "K")
    harness.advance(4000, model.work, 500)
    ((_, units),) = harness.broker.parts.timer.log.chunks(0, harness.broker.parts.timer.log.end)
    assert [int(unit["magic"]) for unit in units] == [1, 1 | MAGIC_DELETE]


def test_pending_counts_exclude_cancels_and_cancelled_messages(harness: BrokerHarness) -> None:
    def pending() -> int:
        return int(harness.broker.parts.timer.pending.counts.by_queue.sum())

    for i in range(3):
        send(harness, f"K{i}", 5000)
    assert pending() == 3
    cancel(harness, "K1")
    cancel(harness, "nobody")
    assert pending() == 2
    harness.restart(clean=False)
    assert pending() == 2
    harness.advance(5000)
    assert pending() == 0


def test_a_message_is_cancelled_in_the_tick_of_its_send(harness: BrokerHarness) -> None:
    harness.submit(harness.send_command("T", delay_ms=2000, properties={props.UNIQ_KEY: "K"}))
    asked = harness.submit(cancel_command(harness, "K"))
    harness.tick()
    assert asked.answer is not None and asked.answer.ext["cancelResult"] == Cancelled.CANCELLED
    assert cancel(harness, "K") == Cancelled.ALREADY_SETTLED
    harness.advance(3000)
    assert harness.bodies("T") == []
    assert int(harness.broker.parts.timer.pending.counts.by_queue.sum()) == 0
    invariants.check(harness.broker)
    harness.restart(clean=False)
    harness.advance(3000)
    assert harness.bodies("T") == []


def test_a_second_cancel_in_the_tick_of_the_send_is_too_late(harness: BrokerHarness) -> None:
    harness.submit(harness.send_command("T", delay_ms=2000, properties={props.UNIQ_KEY: "K"}))
    asked = [harness.submit(cancel_command(harness, key)) for key in ("K", "K", "nobody")]
    harness.tick()
    results = [one.answer.ext["cancelResult"] for one in asked if one.answer is not None]
    assert results == [Cancelled.CANCELLED, Cancelled.ALREADY_SETTLED, Cancelled.NOT_FOUND]
    harness.advance(3000)
    assert harness.bodies("T") == []


def test_cancels_work_while_queue_units_cannot_be_written(harness: BrokerHarness, disk: SimulatedDisk) -> None:
    send(harness, "before", 2000)
    disk.is_full = lambda path: "consumequeue" in str(path)
    harness.submit(harness.send_command("NEW", delay_ms=2000, properties={props.UNIQ_KEY: "K"}))
    harness.submit(harness.send_command("NEW"))  # its queue has no file yet
    harness.tick()
    assert harness.broker.parts.store.journal.count
    harness.broker.parts.health.rejection = None
    asked = [harness.submit(cancel_command(harness, key, topic)) for key, topic in (("K", "NEW"), ("before", "T"))]
    harness.tick()
    for one in asked:
        assert one.answer is not None and one.answer.ext["cancelResult"] == Cancelled.CANCELLED
    disk.is_full = lambda path: False
    harness.advance(3000)
    assert harness.bodies("T") == [] and harness.bodies("NEW") == [b"body"]
    invariants.check(harness.broker)


def test_a_level_takes_precedence_over_a_cancel(harness: BrokerHarness) -> None:
    send(harness, "K", 5000)
    harness.send("T", b"level", properties={props.DELAY: "1", props.TIMER_DEL_UNIQKEY: "T+K"})
    harness.advance(1000)
    assert harness.bodies("T") == [b"level"]
    harness.advance(5000)
    assert harness.bodies("T") == [b"level", b"body"]


def recall_handle(harness: BrokerHarness, key: str) -> str:
    text = f"v1 T broker-a {harness.now_ms + 4000} {key}"
    return base64.urlsafe_b64encode(text.encode()).decode()


class TestRecall:
    """RECALL_MESSAGE cancels by the handle that a send returned."""

    @pytest.fixture(autouse=True)
    def enabled(self, harness: BrokerHarness) -> None:
        harness.restart(recall_enable=True)

    def recall(self, harness: BrokerHarness, handle: str, topic: str = "T") -> Command:
        ext = headers.texts(topic=topic, recallHandle=handle, producerGroup="g")
        return harness.ask(Command(code=RequestCode.RECALL_MESSAGE, ext=ext))

    def test_a_pending_message_is_recalled(self, harness: BrokerHarness) -> None:
        sent = harness.send("T", delay_ms=5000, properties={props.UNIQ_KEY: "K"})
        answer = self.recall(harness, sent.ext["recallHandle"])
        assert (answer.code, answer.ext["msgId"], answer.ext["cancelResult"]) == (0, "K", Cancelled.CANCELLED)
        harness.advance(6000)
        assert harness.bodies("T") == []
        invariants.check(harness.broker)

    @pytest.mark.parametrize("forged", ["TIMER_DEL_UNIQKEY\x01Other+K\x02", "__WMQ_ORIGIN\x013000000000000000\x02", ""])
    def test_a_handle_or_a_group_with_properties_is_rejected(self, harness: BrokerHarness, forged: str) -> None:
        """The record of the cancel would have them, and another broker could execute them."""
        send(harness, "K", 5000)
        end = harness.broker.parts.store.log.end
        answer = self.recall(harness, recall_handle(harness, f"x\x02{forged}"))
        assert (answer.code, answer.remark) == (ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
        ext = headers.texts(topic="T", recallHandle=recall_handle(harness, "x"), producerGroup=f"g\x02{forged}")
        answer = harness.ask(Command(code=RequestCode.RECALL_MESSAGE, ext=ext))
        assert answer.code == ResponseCode.ILLEGAL_OPERATION and "producerGroup" in (answer.remark or "")
        assert harness.broker.parts.store.log.end == end
        harness.advance(5000)
        assert harness.bodies("T") == [b"body"]

    def test_a_second_recall_finds_a_settled_message(self, harness: BrokerHarness) -> None:
        handle = harness.send("T", delay_ms=5000).ext["recallHandle"]
        self.recall(harness, handle)
        answer = self.recall(harness, handle)
        assert (answer.code, answer.ext["cancelResult"]) == (0, Cancelled.ALREADY_SETTLED)

    def test_a_recall_at_the_due_time_is_rejected(self, harness: BrokerHarness) -> None:
        handle = harness.send("T", delay_ms=5000).ext["recallHandle"]
        harness.advance(5000)
        assert self.recall(harness, handle).code == 604

    @pytest.mark.parametrize("handle", ["", "x", "!!!!", "djEgVA==", "djIgVCBiIDEgSw==", "ü"])
    def test_an_invalid_handle_is_rejected(self, harness: BrokerHarness, handle: str) -> None:
        harness.send("T")
        assert self.recall(harness, handle).code == 604

    def test_a_handle_of_another_topic_is_rejected(self, harness: BrokerHarness) -> None:
        harness.send("U")
        handle = harness.send("T", delay_ms=5000).ext["recallHandle"]
        assert self.recall(harness, handle, "U").code == 604
        assert self.recall(harness, handle, "nowhere").code == 17

    def test_a_handle_of_another_broker_is_rejected(self, harness: BrokerHarness) -> None:
        handle = harness.send("T", delay_ms=5000).ext["recallHandle"]
        harness.restart(broker_name="broker-b")
        assert self.recall(harness, handle).code == 604

    def test_a_recall_is_rejected_if_recalls_are_disabled(self, harness: BrokerHarness) -> None:
        handle = harness.send("T", delay_ms=5000).ext["recallHandle"]
        harness.restart(recall_enable=False)
        assert self.recall(harness, handle).code == 16

    def test_messages_that_cannot_be_recalled_have_no_handle(self, harness: BrokerHarness) -> None:
        assert "recallHandle" not in harness.send("T").ext
        assert "recallHandle" not in harness.send("T", properties={props.DELAY: "3"}).ext
        assert "recallHandle" not in harness.send("T", deliver_ms=5).ext
        assert "recallHandle" not in harness.send("%RETRY%g", delay_ms=5000).ext
