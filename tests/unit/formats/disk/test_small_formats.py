"""Origins, message ids, paths, slot times, delay facts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Host
from wheelmq.formats.disk.message_id import offset_message_id, parse_offset_message_id
from wheelmq.formats.disk.origin import (
    ORIGIN_PROPERTY_BYTES,
    TIMER_STREAM,
    Origin,
    origin_index,
    origin_stream,
    origin_text,
    parse_origin,
    timer_origin,
)
from wheelmq.formats.disk.parked import NOTHING, delay_facts, delete_key, due_of, key_hash
from wheelmq.formats.disk.paths import StorePaths, file_name, file_start
from wheelmq.formats.disk.timer import TIMER_TOPIC, slot_time
from wheelmq.formats.units import LogPosition, Millis

STORED_MS = Millis(1_800_000_000_250)


class TestOrigin:
    @given(st.integers(0, (1 << 40) - 1))
    def test_an_origin_gives_its_index_and_stream_back(self, index: int) -> None:
        origin = timer_origin(index)
        assert origin_index(origin) == index
        assert origin_stream(origin) == TIMER_STREAM
        assert parse_origin(origin_text(origin)) == origin
        assert origin < 1 << 63  # it is kept in signed columns

    def test_the_text_of_an_origin_has_16_hex_digits(self) -> None:
        assert origin_text(timer_origin(255)) == "30000000000000FF"
        assert len(props.encode({props.WMQ_ORIGIN: origin_text(timer_origin(1))})) == ORIGIN_PROPERTY_BYTES

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "0",
            "30000000000000f",
            "30000000000000ff",
            "30000000000000FFF",
            "+3000000000000FF",
            "\uff10" * 16,
            "00000000000000FF",
            "40000000000000FF",
            "F0000000000000FF",
        ],
    )
    def test_an_invalid_text_is_no_origin(self, text: str) -> None:
        assert parse_origin(text) is None

    @pytest.mark.parametrize("index", [-1, 1 << 40])
    def test_an_index_out_of_range_fails_an_assertion(self, index: int) -> None:
        with pytest.raises(AssertionError):
            timer_origin(index)


class TestMessageId:
    def test_a_message_id_has_the_form_of_apache(self) -> None:
        assert offset_message_id(Host(b"\x7f\0\0\1", 10911), LogPosition(198)) == "7F00000100002A9F00000000000000C6"

    @pytest.mark.parametrize("host", [Host(b"\x0a\x01\x02\x03", 1), Host(bytes(range(16)), 65535)])
    def test_a_message_id_is_parsed_back(self, host: Host) -> None:
        text = offset_message_id(host, LogPosition(1 << 40))
        assert len(text) in (32, 56)
        assert parse_offset_message_id(text) == (host, 1 << 40)
        assert parse_offset_message_id(text.lower()) == (host, 1 << 40)

    @pytest.mark.parametrize("text", ["", "7F", "x" * 32, "0" * 31, "0" * 33, "0" * 54, "0" * 58])
    def test_an_invalid_message_id_is_rejected(self, text: str) -> None:
        with pytest.raises(ValueError):
            parse_offset_message_id(text)


class TestPaths:
    def test_a_file_is_named_by_its_start_position(self) -> None:
        assert file_name(1 << 30) == "00000000001073741824"
        assert file_start("00000000001073741824") == 1 << 30

    @pytest.mark.parametrize("name", ["", "0", "0" * 21, "0" * 19 + "x", "00000000000000000000.new", "\uff10" * 20])
    def test_an_invalid_file_name_has_no_start_position(self, name: str) -> None:
        assert file_start(name) is None

    def test_the_layout_is_that_of_apache(self) -> None:
        paths = StorePaths(Path("/s"))
        assert [str(path) for path in (paths.abort, paths.checkpoint, paths.lock, paths.commit_log)] == [
            "/s/abort",
            "/s/checkpoint",
            "/s/lock",
            "/s/commitlog",
        ]
        assert str(paths.consume_queue("T", 3)) == "/s/consumequeue/T/3"
        assert (str(paths.timer_wheel), str(paths.timer_log)) == ("/s/timerwheel", "/s/timerlog")
        assert str(paths.config_file("timercheck")) == "/s/config/timercheck"
        assert str(paths.timer_mark) == "/s/config/timermark"


class TestSlotTime:
    @pytest.mark.parametrize(
        ("due_ms", "precision_ms", "slot_ms"),
        [
            (1000, 1000, 0),  # an exact multiple lies in the slot before
            (1001, 1000, 1000),
            (1999, 1000, 1000),
            (2000, 1000, 1000),
            (1, 1000, 0),
            (500, 100, 400),
            (501, 100, 500),
        ],
    )
    def test_a_due_time_has_its_slot_time(self, due_ms: int, precision_ms: int, slot_ms: int) -> None:
        assert slot_time(Millis(due_ms), precision_ms) == slot_ms

    @given(st.integers(1, 1 << 50), st.sampled_from([100, 200, 500, 1000]))
    def test_slot_times_follow_the_rule_of_apache(self, due_ms: int, precision_ms: int) -> None:
        floored = due_ms - precision_ms if due_ms % precision_ms == 0 else due_ms // precision_ms * precision_ms
        assert slot_time(Millis(due_ms), precision_ms) == floored
        assert floored < due_ms <= floored + precision_ms


class TestDueOf:
    OUT = {props.TIMER_OUT_MS: "1800000005000"}

    @pytest.mark.parametrize(
        ("properties", "due_ms"),
        [
            ({props.WMQ_DUE: "1800000005500", props.TIMER_DELIVER_MS: "1"}, 1800000005500),
            ({props.TIMER_DELIVER_MS: "1800000005250", props.TIMER_DELAY_SEC: "1"}, 1800000005250),
            ({props.TIMER_DELAY_SEC: "5"}, STORED_MS + 5000),
            ({props.TIMER_DELAY_SEC: "5", props.TIMER_DELAY_MS: "1"}, STORED_MS + 5000),
            ({props.TIMER_DELAY_MS: "5500"}, STORED_MS + 5500),
            ({props.TIMER_DELAY_SEC: "5", props.TIMER_ROLL_TIMES: "1"}, 1800000005000),
            ({props.TIMER_DELAY_MS: "5", props.TIMER_ROLL_TIMES: "1"}, 1800000005000),
            ({props.TIMER_DELAY_SEC: "x"}, 1800000005000),
            ({}, 1800000005000),
            ({props.WMQ_DUE: "180000000550", props.TIMER_DELIVER_MS: "7"}, 7),  # not 13 digits
            ({props.WMQ_DUE: "\uff11800000005500"}, 1800000005000),  # 13 digits, and not ours
            ({props.WMQ_DUE: "-800000005500"}, 1800000005000),
        ],
    )
    def test_the_properties_determine_the_due_time(self, properties: dict[str, str], due_ms: int) -> None:
        assert due_of({**self.OUT, **properties}, STORED_MS) == due_ms

    def test_a_record_with_an_unreadable_time_is_due_at_its_store_time(self) -> None:
        assert due_of({}, STORED_MS) == STORED_MS
        assert due_of({props.TIMER_OUT_MS: "soon"}, STORED_MS) == STORED_MS


class TestDelayFacts:
    PARKED = {
        props.UNIQ_KEY: "K",
        props.TIMER_OUT_MS: "1800000005000",
        props.REAL_TOPIC: "T",
        props.REAL_QID: "0",
        props.WMQ_DUE: "1800000005500",
    }

    def test_a_plain_record_has_no_delay_facts(self) -> None:
        assert delay_facts("T", 0, self.PARKED, STORED_MS) == NOTHING

    def test_a_parked_record_has_stream_due_time_and_key(self) -> None:
        facts = delay_facts(TIMER_TOPIC, 0, self.PARKED, STORED_MS)
        assert facts == (TIMER_STREAM, 1800000005500, 0, key_hash("T+K"), False, False, False)

    def test_our_cancel_is_decided(self) -> None:
        facts = delay_facts(TIMER_TOPIC, 0, {**self.PARKED, props.TIMER_DEL_UNIQKEY: "T+K"}, STORED_MS)
        assert (facts.deletes, facts.decided, facts.key_hash) == (True, True, 0)

    def test_a_cancel_of_apache_is_not_decided(self) -> None:
        properties = {**self.PARKED, props.TIMER_DEL_UNIQKEY: "T+K"}
        del properties[props.WMQ_DUE]
        facts = delay_facts(TIMER_TOPIC, 0, properties, STORED_MS)
        assert (facts.deletes, facts.decided) == (True, False)

    def test_an_origin_counts_only_as_the_last_property(self) -> None:
        text = origin_text(timer_origin(7))
        assert delay_facts("T", 0, {"a": "b", props.WMQ_ORIGIN: text}, STORED_MS).settles == timer_origin(7)
        assert delay_facts("T", 0, {props.WMQ_ORIGIN: text, "a": "b"}, STORED_MS).settles == 0
        assert delay_facts("T", 0, {"a": "b", props.WMQ_ORIGIN: "nonsense"}, STORED_MS).settles == Origin(0)

    @pytest.mark.parametrize("missing", [props.UNIQ_KEY, props.REAL_TOPIC])
    def test_a_record_without_a_key_has_no_key_hash(self, missing: str) -> None:
        properties = {name: value for name, value in self.PARKED.items() if name != missing}
        assert delay_facts(TIMER_TOPIC, 0, properties, STORED_MS).key_hash == 0

    def test_the_key_hash_is_fnv_1a(self) -> None:
        assert key_hash("") == 0xCBF29CE484222325 - (1 << 64)
        assert key_hash("a") == 0xAF63DC4C8601EC8C - (1 << 64)
        assert key_hash("foobar") == 0x85944171F73967E8 - (1 << 64)
        assert delete_key("T", "K") == "T+K"
