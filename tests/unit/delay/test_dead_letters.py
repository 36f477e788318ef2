"""Messages that no release can deliver: dead letters, and records that stay pending."""

from __future__ import annotations

import pytest

from tests.unit.delay.parked import REAL, due, park_raw
from wheelmq.delay.rebuild import PARKED_TOPICS
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.origin import origin_text, timer_origin
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.names import DEAD_LETTER_TOPIC
from wheelmq.testing import invariants
from wheelmq.testing.harness import BrokerHarness


class TestPoison:
    @pytest.mark.parametrize(
        "properties",
        [
            {},
            {props.REAL_QID: "0"},
            {props.REAL_TOPIC: "T"},
            {props.REAL_TOPIC: "no topic", props.REAL_QID: "0"},
            {props.REAL_TOPIC: "../etc", props.REAL_QID: "0"},
            {props.REAL_TOPIC: TIMER_TOPIC, props.REAL_QID: "0"},
            {props.REAL_TOPIC: "T", props.REAL_QID: "x"},
            {props.REAL_TOPIC: "T", props.REAL_QID: "-1"},
            {props.REAL_TOPIC: "T", props.REAL_QID: str(1 << 31)},
        ],
    )
    def test_a_message_without_a_valid_destination_is_a_dead_letter(
        self, harness: BrokerHarness, properties: dict[str, str]
    ) -> None:
        index = park_raw(harness, {"own": "x", **properties, **due(1000)})
        harness.advance(1000)
        (record,) = harness.read_queue(DEAD_LETTER_TOPIC)
        assert record.message.body == b"raw"
        assert record.message.properties["own"] == "x"
        assert record.message.properties[props.WMQ_ORIGIN] == origin_text(timer_origin(index))
        assert harness.broker.parts.releaser.counts["dead_letter"] == 1
        assert sum(harness.broker.parts.timer.pending.counts.by_queue) == 0
        harness.restart(clean=False)
        harness.advance(5000)
        assert len(harness.read_queue(DEAD_LETTER_TOPIC)) == 1

    @pytest.mark.kernels
    @pytest.mark.parametrize("topic", PARKED_TOPICS)
    def test_the_kernel_releases_nothing_to_a_topic_of_parked_messages(
        self, harness: BrokerHarness, topic: str
    ) -> None:
        index = park_raw(harness, {props.REAL_TOPIC: topic, props.REAL_QID: "0", **due(1000)})
        harness.advance(1000)
        (record,) = harness.read_queue(DEAD_LETTER_TOPIC)
        assert record.message.properties[props.WMQ_ORIGIN] == origin_text(timer_origin(index))

    def test_a_message_without_room_for_its_origin_is_a_dead_letter(self, harness: BrokerHarness) -> None:
        block = {**REAL, **due(1000)}
        block["own"] = "x" * (props.PROPERTIES_BYTES_MAX - len(props.encode(block)) - 5)
        park_raw(harness, block)
        harness.advance(1000)
        (record,) = harness.read_queue(DEAD_LETTER_TOPIC)
        assert record.message.properties[props.REAL_TOPIC] == "T"
        assert list(record.message.properties)[-1] == props.WMQ_ORIGIN
        assert harness.bodies("T") == []
        invariants.check(harness.broker)

    def test_a_dead_letter_does_not_stop_other_messages(self, harness: BrokerHarness) -> None:
        park_raw(harness, {**due(1000)})
        harness.send("T", delay_ms=1000)
        harness.advance(1000)
        assert harness.bodies("T") == [b"body"]

    def test_an_unreadable_record_stays_pending(self, harness: BrokerHarness) -> None:
        for i in range(3):
            harness.send("T", b"%d" % i, delay_ms=1000)
        harness.broker.parts.store.log.files.file_at(0).view[4] = 0
        harness.advance(1000)
        assert harness.bodies("T") == [b"1", b"2"]
        assert harness.broker.parts.releaser.counts["unreadable"] == 1
        assert not harness.broker.parts.releaser.has_more()
        assert (
            sum(harness.broker.parts.timer.pending.counts.by_queue) == 1
        )  # it is not settled: a good copy may be restored
        assert harness.send("T", b"3").code == 0
        harness.broker.parts.store.log.files.file_at(0).view[4] = 0xDA
        harness.restart()
        harness.settle()
        assert harness.bodies("T") == [b"1", b"2", b"3", b"0"]
