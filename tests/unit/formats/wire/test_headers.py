"""Headers: extFields are converted to typed values and back."""

from __future__ import annotations

import pytest

from wheelmq.formats.wire import headers
from wheelmq.formats.wire.headers import HeaderError, PullHeader, SendHeader

SEND = {
    "producerGroup": "g",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "-1",
    "sysFlag": "1",
    "bornTimestamp": "1800000000250",
    "flag": "0",
}
LETTERS = dict(zip(SEND, "abcdefgh", strict=True))


def test_numbers_are_sent_as_texts() -> None:
    header = headers.read(SEND, SendHeader)
    assert (header.queue_id, header.sys_flag, header.born_timestamp) == (-1, 1, 1800000000250)
    assert (header.properties, header.reconsume_times, header.batch, header.max_reconsume_times) == ("", 0, False, None)


def test_letters_name_the_same_fields() -> None:
    ext = {LETTERS[name]: value for name, value in SEND.items()}
    assert headers.read_send_v2(ext) == headers.read(SEND, SendHeader)
    ext |= {"i": "p", "j": "3", "k": "true", "l": "16", "m": "true", "n": "broker-a", "zz": "?"}
    header = headers.read_send_v2(ext)
    assert (header.properties, header.reconsume_times, header.unit_mode) == ("p", 3, True)
    assert (header.max_reconsume_times, header.batch) == (16, True)


def test_letters_and_names_are_not_interchangeable() -> None:
    with pytest.raises(HeaderError):
        headers.read_send_v2(SEND)


@pytest.mark.parametrize("name", sorted(SEND.keys() - {"producerGroup"}))
def test_a_missing_required_field_is_rejected(name: str) -> None:
    with pytest.raises(HeaderError, match=f"SendHeader.*{name}"):
        headers.read({key: value for key, value in SEND.items() if key != name}, SendHeader)


@pytest.mark.parametrize("value", ["", "x", "1.5", "0x1", "true", " 1"])
def test_an_invalid_number_is_rejected(value: str) -> None:
    with pytest.raises(HeaderError):
        headers.read({**SEND, "queueId": value}, SendHeader)


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False), ("True", True), ("FALSE", False)])
def test_booleans_are_read_in_any_case(text: str, value: bool) -> None:
    assert headers.read({**SEND, "unitMode": text}, SendHeader).unit_mode is value


def test_unknown_fields_are_ignored() -> None:
    assert headers.read({**SEND, "bname": "b", "ns": "", "oway": "x"}, SendHeader).topic == "T"


def test_a_pull_header_has_defaults() -> None:
    ext = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "1",
        "queueOffset": "5",
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
    }
    header = headers.read(ext, PullHeader)
    assert header.subscription is None and header.max_msg_bytes is None and header.sub_version == 0
    assert header.suspend_timeout_millis == 15000


def test_the_unregister_header_spells_client_id_in_capitals() -> None:
    header = headers.read({"clientID": "c"}, headers.UnregisterClientHeader)
    assert (header.client_id, header.producer_group, header.consumer_group) == ("c", None, None)


def test_values_are_converted_to_texts() -> None:
    assert headers.texts(a=1, b=True, c=False, d=None, e="x", f=-1) == {
        "a": "1",
        "b": "true",
        "c": "false",
        "e": "x",
        "f": "-1",
    }


@pytest.mark.parametrize(("text", "value"), [("true", True), ("TRUE", True), ("1", False), ("", False), ("yes", False)])
def test_a_boolean_is_read_as_in_java(text: str, value: bool) -> None:
    header = headers.read({"offset": "1", "group": "g", "delayLevel": "0", "unitMode": text}, headers.SendBackHeader)
    assert header.unit_mode is value
