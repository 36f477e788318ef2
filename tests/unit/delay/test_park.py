"""The rules of parking (RocketMQ: HookUtils, MessageExtBrokerInner)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelmq.delay.levels.table import DEFAULT_LEVELS, parse_levels
from wheelmq.delay.park import LevelUnreadable, ParkRejected, ParkSettings, park
from wheelmq.delay.settings import TimerSettings
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.origin import ORIGIN_PROPERTY_BYTES
from wheelmq.formats.disk.parked import ROOM_BYTES, delay_facts, due_of, due_text
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.names import SCHEDULE_TOPIC
from wheelmq.formats.units import Millis

NOW = Millis(1_800_000_000_250)
SETTINGS = ParkSettings()
MAX_MS = 3 * 24 * 3600 * 1000
SEC, MS, AT = props.TIMER_DELAY_SEC, props.TIMER_DELAY_MS, props.TIMER_DELIVER_MS


def message(properties: Mapping[str, str], *, topic: str = "T", queue_id: int = 3, sys_flag: int = 0) -> Message:
    return Message(topic, queue_id, b"body", dict(properties), sys_flag=sys_flag)


def due(properties: Mapping[str, str]) -> int | None:
    """Return the delay, from NOW on, that a message with these properties asks for; None for no delay."""
    found = park(message(properties), NOW, SETTINGS)
    return None if found is None else found - NOW


class TestRequestedTimes:
    @pytest.mark.parametrize(
        ("properties", "delay_ms"),
        [
            ({}, None),
            ({SEC: "3"}, 3000),
            ({MS: "1"}, 1),
            ({AT: str(NOW + 7)}, 7),
            ({SEC: "+3"}, 3000),
            ({SEC: "\uff13"}, 3000),
            ({SEC: "0003"}, 3000),
            # precedence
            ({SEC: "1", MS: "5000", AT: str(NOW + 9000)}, 1000),
            ({MS: "5000", AT: str(NOW + 9000)}, 5000),
            ({AT: str(NOW + 9000), MS: "5000"}, 5000),
            # at once
            ({SEC: "0"}, None),
            ({SEC: "-1"}, None),
            ({MS: "0"}, None),
            ({MS: "-9223372036854775808"}, None),
            ({AT: "0"}, None),
            ({AT: "-1"}, None),
            ({AT: str(NOW)}, None),
            ({AT: str(NOW - 1)}, None),
            ({AT: str(NOW + 1)}, 1),
            ({SEC: "0", MS: "5000"}, None),  # the first property present counts, whatever its value
            # the limit is inclusive
            ({SEC: "259200"}, MAX_MS),
            ({MS: str(MAX_MS)}, MAX_MS),
            ({AT: str(NOW + MAX_MS)}, MAX_MS),
            # Java's arithmetic
            ({SEC: "9223372036854775807"}, None),  # times 1000, it overflows to -1000
            ({MS: "9223372036854775807"}, None),  # the due time overflows
        ],
    )
    def test_a_readable_time_gives_a_delay_or_none(self, properties: dict[str, str], delay_ms: int | None) -> None:
        assert due(properties) == delay_ms

    @pytest.mark.parametrize(
        "properties",
        [
            {SEC: "abc"},
            {SEC: "1.5"},
            {SEC: " 1"},
            {MS: "1e3"},
            {AT: "tomorrow"},
            {SEC: "12345678901234567890"},
            {AT: "9223372036854775808"},
            {SEC: "259201"},
            {MS: str(MAX_MS + 1)},
            {AT: str(NOW + MAX_MS + 1)},
            {AT: "9223372036854775807"},
            {SEC: "x", MS: "5000"},
        ],
    )
    def test_an_unreadable_or_too_long_time_is_rejected(self, properties: dict[str, str]) -> None:
        with pytest.raises(ParkRejected):
            due(properties)

    def test_the_rejection_names_the_limit(self) -> None:
        with pytest.raises(ParkRejected, match="must not exceed 259200000ms"):
            due({SEC: "259201"})

    def test_an_empty_value_requests_no_delay(self) -> None:
        assert due(props.parse(f"{SEC}\x01\x02a\x01b\x02")) is None

    @pytest.mark.parametrize(("sys_flag", "delay_ms"), [(0x4, None), (0xC, None), (0x8, 3000), (0x301, 3000)])
    def test_half_messages_and_rollbacks_are_never_delayed(self, sys_flag: int, delay_ms: int | None) -> None:
        for properties in ({SEC: "3"}, {props.DELAY: "1"}):
            found = park(message(properties, sys_flag=sys_flag), NOW, SETTINGS)
            assert (found is None) is (delay_ms is None)

    def test_a_message_marked_as_parked_is_not_parked_again(self) -> None:
        assert due({SEC: "3", props.TIMER_OUT_MS: "1"}) is None


class TestLevels:
    @pytest.mark.parametrize(
        ("level", "delay_ms"),
        [("1", 1000), ("2", 5000), ("18", 7_200_000), ("19", 7_200_000), ("2147483647", 7_200_000), ("+1", 1000)],
    )
    def test_a_level_has_the_delay_of_the_table(self, level: str, delay_ms: int) -> None:
        assert due({props.DELAY: level}) == delay_ms

    @pytest.mark.parametrize("level", ["0", "-1", "-2147483648"])
    def test_a_level_of_zero_or_less_counts_as_no_level(self, level: str) -> None:
        assert due({props.DELAY: level}) is None
        assert due({props.DELAY: level, SEC: "3"}) == 3000

    def test_the_longest_delay_fits_the_digits_of_a_due_time(self) -> None:
        settings = ParkSettings(levels_ms=parse_levels("2147483647s"))
        parked = message({props.DELAY: "1"})
        due_ms = park(parked, NOW, settings, NOW + 1)
        assert due_ms == NOW + 2_147_483_647_000
        assert delay_facts(parked.topic, 0, parked.properties, NOW).due_ms == due_ms

    def test_a_level_removes_the_properties_of_a_timer(self) -> None:
        parked = message({props.DELAY: "2", SEC: "9", MS: "x", AT: "y", props.REAL_QID: "8", "KEYS": "k"})
        assert park(parked, NOW, SETTINGS) == NOW + 5000
        assert (parked.topic, parked.queue_id) == (SCHEDULE_TOPIC, 1)
        assert list(parked.properties.items()) == [
            (props.DELAY, "2"),
            ("KEYS", "k"),
            (props.REAL_TOPIC, "T"),
            (props.REAL_QID, "3"),
        ]

    def test_the_due_time_is_stored_if_store_times_are_ahead_of_the_clock(self) -> None:
        for last_ms, said in ((NOW, None), (NOW + 1, due_text(Millis(NOW + 1000)))):
            parked = message({props.DELAY: "1"})
            assert park(parked, NOW, SETTINGS, last_ms) == NOW + 1000
            assert parked.properties.get(props.WMQ_DUE) == said

    def test_a_level_message_keeps_room_for_its_origin(self) -> None:
        free = props.PROPERTIES_BYTES_MAX - ORIGIN_PROPERTY_BYTES
        added = len(props.encode({props.DELAY: "1", "k": "", props.REAL_TOPIC: "T", props.REAL_QID: "3"}))
        park(message({props.DELAY: "1", "k": "x" * (free - added)}), NOW, SETTINGS)
        with pytest.raises(ParkRejected, match=f"the limit of a delayed message is {free}"):
            park(message({props.DELAY: "1", "k": "x" * (free - added + 1)}), NOW, SETTINGS)

    def test_a_forged_earlier_level_is_removed(self) -> None:
        parked = message({SEC: "3", props.TIMER_DELAY_LEVEL: "5", props.DELAY: "0"})
        assert park(parked, NOW, SETTINGS) == NOW + 3000
        assert props.TIMER_DELAY_LEVEL not in parked.properties

    @pytest.mark.parametrize("level", ["x", "1.5", ""])
    def test_a_level_that_is_no_number_is_rejected(self, level: str) -> None:
        with pytest.raises(LevelUnreadable):
            due({props.DELAY: level})

    @pytest.mark.parametrize("level", ["2147483648", "-2147483649", "99999999999"])
    def test_a_level_of_more_than_32_bits_is_rejected(self, level: str) -> None:
        with pytest.raises(LevelUnreadable):
            due({props.DELAY: level})

    def test_another_table_caps_the_level(self) -> None:
        settings = ParkSettings(levels_ms=parse_levels("2s 1m"))
        parked = message({props.DELAY: "9"})
        assert park(parked, NOW, settings) == NOW + 60_000
        assert (parked.queue_id, parked.properties[props.DELAY]) == (1, "2")

    def test_the_default_table_is_that_of_apache(self) -> None:
        seconds = [1, 5, 10, 30, *(60 * m for m in range(1, 11)), 1200, 1800, 3600, 7200]
        assert list(parse_levels(DEFAULT_LEVELS)) == [1000 * s for s in seconds]
        assert parse_levels(" 1d  2h ") == (86_400_000, 7_200_000)

    @pytest.mark.parametrize(
        "text", ["", "  ", "1", "1s 5", "s", "1 s", "1S", "-1s", "1.5s", "1ms", "1s,5s", "2147483648s", "24856d"]
    )
    def test_an_invalid_table_is_rejected(self, text: str) -> None:
        with pytest.raises(ValueError, match="messageDelayLevel"):
            parse_levels(text)


class TestCancels:
    def test_a_cancel_with_a_future_time_is_parked(self) -> None:
        assert due({props.TIMER_DEL_UNIQKEY: "T+K", AT: str(NOW + 5)}) == 5

    @pytest.mark.parametrize("properties", [{AT: str(NOW)}, {AT: "0"}, {SEC: "-1"}])
    def test_a_cancel_with_a_past_time_is_rejected(self, properties: dict[str, str]) -> None:
        with pytest.raises(ParkRejected, match="of a cancel must be in the future"):
            due({**properties, props.TIMER_DEL_UNIQKEY: "T+K"})

    def test_a_cancel_without_a_time_is_a_plain_message(self) -> None:
        assert due({props.TIMER_DEL_UNIQKEY: "T+K"}) is None


class TestParkedMessages:
    def test_a_parked_message_has_topic_queue_and_times(self) -> None:
        parked = message({"KEYS": "k", MS: "1500"})
        assert park(parked, NOW, SETTINGS) == NOW + 1500
        assert (parked.topic, parked.queue_id) == (TIMER_TOPIC, 0)
        assert list(parked.properties.items()) == [
            ("KEYS", "k"),
            (MS, "1500"),
            (props.TIMER_OUT_MS, "1800000001000"),
            (props.REAL_TOPIC, "T"),
            (props.REAL_QID, "3"),
            (props.WMQ_DUE, "1800000001750"),
        ]

    @pytest.mark.parametrize(
        ("deliver_ms", "slot_ms"),
        [(1_800_000_002_000, 1_800_000_001_000), (1_800_000_002_001, 1_800_000_002_000)],
    )
    def test_an_exact_multiple_is_in_the_slot_before(self, deliver_ms: int, slot_ms: int) -> None:
        parked = message({AT: str(deliver_ms)})
        park(parked, NOW, SETTINGS)
        assert parked.properties[props.TIMER_OUT_MS] == str(slot_ms)

    @pytest.mark.parametrize("precision_ms", [100, 200, 500, 1000])
    def test_the_slot_time_has_the_precision(self, precision_ms: int) -> None:
        parked = message({MS: "1"})
        park(parked, NOW, ParkSettings(TimerSettings(precision_ms=precision_ms)))
        assert int(parked.properties[props.TIMER_OUT_MS]) == 1_800_000_000_250 // precision_ms * precision_ms

    def test_forged_redirections_are_replaced(self) -> None:
        forged = {props.REAL_TOPIC: "rmq_sys_x", props.REAL_QID: "99", MS: "1"}
        parked = message(forged)
        park(parked, NOW, SETTINGS)
        assert (parked.properties[props.REAL_TOPIC], parked.properties[props.REAL_QID]) == ("T", "3")

    def test_a_message_due_at_once_is_not_changed(self) -> None:
        properties = {AT: "5", props.REAL_TOPIC: "X", "a": "b"}
        sent = message(properties)
        assert park(sent, NOW, SETTINGS) is None
        assert (sent.topic, sent.queue_id, sent.properties) == ("T", 3, properties)

    def test_a_timer_keeps_room_for_the_properties_of_its_release(self) -> None:
        def with_bytes(size: int) -> Message:
            sent = message({MS: "1", "k": ""})
            park(sent, NOW, SETTINGS)
            free = size - len(props.encode(sent.properties))
            return message({MS: "1", "k": "x" * free})

        limit = props.PROPERTIES_BYTES_MAX - ROOM_BYTES
        fits = with_bytes(limit)
        park(fits, NOW, SETTINGS)
        assert len(props.encode(fits.properties)) == limit
        with pytest.raises(ParkRejected, match=f"the limit of a delayed message is {limit}"):
            park(with_bytes(limit + 1), NOW, SETTINGS)

    @given(st.integers(1, MAX_MS), st.sampled_from([100, 500, 1000]))
    def test_a_parked_record_gives_its_due_time_back(self, delay_ms: int, precision_ms: int) -> None:
        parked = message({MS: str(delay_ms)})
        due_ms = park(parked, NOW, ParkSettings(TimerSettings(precision_ms=precision_ms)))
        assert due_ms == NOW + delay_ms == due_of(props.parse(props.encode(parked.properties).decode()), Millis(0))
        slot_ms = int(parked.properties[props.TIMER_OUT_MS])
        assert slot_ms % precision_ms == 0 and slot_ms < due_ms <= slot_ms + precision_ms
