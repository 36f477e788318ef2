"""Options: each error names the option and the remedy."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.offsets import EARLIEST, LATEST, Queue, StreamOffset, check_complete, parse_offsets
from pyspark_rocketmq.options import GROUP, batch_options, sink_options, stream_options
from pyspark_rocketmq.times import duration_ms, parse_moment
from wheelmq.formats.units import Millis

BASE = {"namesrvaddr": "127.0.0.1:9876", "topic": "T"}
NOW_MS = Millis(1_800_000_000_000)


class TestSource:
    def test_a_stream_starts_at_the_latest_message_and_a_batch_at_the_earliest(self) -> None:
        found = stream_options(BASE)
        assert found.topics.names == ("T",) and found.start == LATEST and found.fails_on_loss
        assert found.filter.is_open and found.connection.namesrv == ("127.0.0.1:9876",)
        assert batch_options(BASE).start == EARLIEST

    def test_several_name_servers_and_topics(self) -> None:
        found = batch_options({"namesrvAddr": "a:1; b:2,c:3", "topics": "U, T,U"})
        assert found.connection.namesrv == ("a:1", "b:2", "c:3") and found.topics.names == ("T", "U")

    def test_a_start_is_a_word_or_json(self) -> None:
        assert batch_options({**BASE, "startingOffsets": "Latest"}).start == LATEST
        assert stream_options({**BASE, "startingOffsets": "group", "group": "g"}).start == GROUP
        text = '{"T": {"broker-a": {"0": 5}}}'
        assert stream_options({**BASE, "startingOffsets": text}).start == {Queue("T", "broker-a", 0): 5}

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"topic": "T"}, "namesrvAddr is missing"),
            ({"namesrvAddr": "localhost", "topic": "T"}, "namesrvAddr has 'localhost': write HOST:PORT"),
            ({"namesrvAddr": "a:1"}, "give option topic, topics"),
            ({**BASE, "topics": "U"}, "topic and topics exclude each other"),
            ({**BASE, "topic": "a b"}, "topic is 'a b'"),
            ({"namesrvAddr": "a:1", "topicsPattern": "("}, "topicsPattern is '\\('"),
            ({**BASE, "startingOfsets": "latest"}, "unknown option startingofsets: did you mean startingOffsets?"),
            ({**BASE, "path": "T"}, "not with a path"),
            ({**BASE, "zzz": "1"}, "unknown option zzz: the options are namesrvAddr"),
            ({**BASE, "endingOffsets": "latest"}, "endingOffsets has no use for a stream"),
            ({**BASE, "producerGroup": "g"}, "producerGroup has no use"),
            ({**BASE, "startingOffsets": "group"}, "name the group with option group"),
            ({**BASE, "startingOffsets": "soon"}, "startingOffsets is 'soon': write earliest, latest, group"),
            ({**BASE, "startingOffsets": '{"T": {"a": {"0": -3}}}'}, "offset -3 for queue T/a/0"),
            ({**BASE, "startingOffsets": '{"T": {"a": {"0": "x"}}}'}, "write offsets by topic, broker and queue"),
            ({**BASE, "startingOffsets": "latest", "startingTimestamp": "1"}, "exclude each other"),
            ({**BASE, "startingTimestamp": "yesterday"}, "startingTimestamp is 'yesterday': write a time as in"),
            ({**BASE, "startingTimestamp": "-10 weeks"}, "startingTimestamp is '10 weeks': write a number and a unit"),
            ({**BASE, "tags": "a", "sql": "b > 1"}, "tags and sql exclude each other"),
            ({**BASE, "tags": "||"}, "tags is '||'"),
            ({**BASE, "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is '0': write a whole number"),
            ({**BASE, "maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "2"}, "minOffsetsPerTrigger is 2, more"),
            ({**BASE, "maxTriggerDelay": "1m"}, "only with minOffsetsPerTrigger"),
            ({**BASE, "minOffsetsPerTrigger": "2", "maxTriggerDelay": "soon"}, "maxTriggerDelay is 'soon'"),
            ({**BASE, "failOnDataLoss": "yes"}, "failOnDataLoss is 'yes': write true or false"),
            ({**BASE, "commitGroupOffsets": "true"}, "commitGroupOffsets needs the group"),
            ({**BASE, "accessKey": "k"}, "secretKey is missing"),
            ({**BASE, "securityToken": "t"}, "accessKey is missing"),
            ({**BASE, "tls": "false", "tlsCaFile": "x"}, "tls is false, and tlsCaFile is given"),
            ({**BASE, "tlsVerify": "some"}, "options tls\\* are wrong"),
            ({**BASE, "group": "a b"}, "group is 'a b'"),
            ({**BASE, "tags": " "}, "option tags is empty"),
        ],
    )
    def test_an_error_names_the_option_and_the_remedy(self, options: dict[str, str], text: str) -> None:
        with pytest.raises(OptionError, match=text):
            stream_options(options)

    def test_no_text_of_the_options_has_the_secret(self) -> None:
        found = sink_options({**BASE, "accessKey": "spark", "secretKey": "secret-of-spark", "tls": "true"})
        assert found.connection.access_key is not None and found.connection.tls is not None
        assert "secret-of-spark" not in repr(found)

    def test_a_bad_end_is_found_at_once(self) -> None:
        with pytest.raises(OptionError, match="endingTimestamp is '2026-11-25T10:00:00', a time without a zone: add Z"):
            batch_options({**BASE, "endingTimestamp": "2026-11-25T10:00:00"})


class TestSink:
    def test_the_options_of_a_sink(self) -> None:
        found = sink_options({**BASE, "pastDeliverTime": "deliver", "checkpointLocation": "/x", "maxBodyBytes": "9"})
        assert found.delivers_past and found.body_bytes_max == 9 and found.topic == "T" and not found.is_exactly_once
        assert sink_options({**BASE, "guarantee": "exactly-once", "maxBodyBytes": "5177344"}).is_exactly_once
        assert sink_options({**BASE, "guarantee": "exactly-once", "createTopic": "false"}).is_exactly_once
        assert not sink_options({**BASE, "guarantee": "at-least-once", "maxBodyBytes": "5177345"}).is_exactly_once

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"startingOffsets": "latest"}, "startingOffsets has no use for a sink"),
            ({"pastDeliverTime": "drop"}, "pastDeliverTime is 'drop': write fail, or deliver"),
            ({"guarantee": "exactlyOnce"}, "guarantee is 'exactlyOnce': write at-least-once or exactly-once"),
            ({"guarantee": "exactly-once", "maxBodyBytes": "5177345"}, "lower it to at most 5177344"),
            ({"guarantee": "exactly-once", "jobId": "j" * 256}, "jobId has 256 characters: shorten it to at most 255"),
            (
                {"guarantee": "exactly-once", "createTopic": "true"},
                "createTopic is true, and guarantee is exactly-once",
            ),
            ({"producerGroup": "a b"}, "producerGroup is 'a b'"),
        ],
    )
    def test_an_error_names_the_option(self, options: dict[str, str], text: str) -> None:
        with pytest.raises(OptionError, match=text):
            sink_options({**BASE, **options})


class TestOffsets:
    def test_the_json_is_canonical(self) -> None:
        one = {Queue("U", "b", 0): 1, Queue("T", "b", 10): 2, Queue("T", "b", 9): 3, Queue("T", "a", 0): 4}
        other = dict(reversed(one.items()))
        assert str(StreamOffset(one).to_json()) == str(StreamOffset(other).to_json())
        expected = {"lost": 7, "queues": {"T": {"a": {"0": 4}, "b": {"9": 3, "10": 2}}, "U": {"b": {"0": 1}}}}
        assert str(StreamOffset(one, 7).to_json()) == str(expected)
        assert StreamOffset.of_json(expected) == StreamOffset(one, 7)

    def test_a_foreign_checkpoint_is_an_error(self) -> None:
        with pytest.raises(OptionError, match="choose another checkpointLocation"):
            StreamOffset.of_json({"T": {"0": 1}})

    def test_offsets_name_each_queue_once(self) -> None:
        given = parse_offsets("startingOffsets", '{"T": {"a": {"0": -2, "1": 7}}}')
        check_complete("startingOffsets", given, given)
        with pytest.raises(OptionError, match="no offset for T/a/2"):
            check_complete("startingOffsets", given, [*given, Queue("T", "a", 2)])
        with pytest.raises(OptionError, match="names T/a/1, which no broker has"):
            check_complete("startingOffsets", given, [Queue("T", "a", 0)])


class TestTimes:
    @pytest.mark.parametrize(
        ("text", "expected_ms"),
        [
            ("1795231431000", 1_795_231_431_000),
            ("-10 minutes", NOW_MS - 600_000),
            ("-1500ms", NOW_MS - 1500),
            ("-2h", NOW_MS - 7_200_000),
            ("2026-11-25T10:00:00Z", 1_795_600_800_000),
            ("2026-11-25T11:00:00+01:00", 1_795_600_800_000),
            ("2026-11-25T10:00:00.001Z", 1_795_600_800_001),
            ("2026-11-25T10:00:00.000001Z", 1_795_600_800_001),
            ("1960-01-01T00:00:00Z", 0),
        ],
    )
    def test_a_time_has_one_of_three_forms(self, text: str, expected_ms: int) -> None:
        assert parse_moment("startingTimestamp", text).since_epoch_ms(NOW_MS) == expected_ms

    @pytest.mark.parametrize("text", ["yesterday", "2026-11-25T10:00:00", "-10 weeks", "- 3", "", "9" * 19])
    def test_an_error_names_the_option(self, text: str) -> None:
        with pytest.raises(OptionError, match="startingTimestamp is"):
            parse_moment("startingTimestamp", text)

    @pytest.mark.parametrize(
        ("text", "ms"), [("15 minutes", 900_000), ("1 day", 86_400_000), ("10ms", 10), ("3s", 3000)]
    )
    def test_a_duration_is_a_number_with_a_unit(self, text: str, ms: int) -> None:
        assert duration_ms("maxTriggerDelay", text) == ms
