"""Names of topics."""

from __future__ import annotations

import pytest

from wheelmq.formats import names


@pytest.mark.parametrize("topic", ["T", "a-b_c", "%RETRY%g", "%DLQ%g", "ns%T", "a|b", "x" * 127, "0", "TBW102"])
def test_a_valid_topic_name_has_no_problem(topic: str) -> None:
    assert names.topic_problem(topic) is None


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("", "blank"),
        ("  ", "blank"),
        ("a b", "illegal characters"),
        ("a.b", "illegal characters"),
        ("a/b", "illegal characters"),
        ("..", "illegal characters"),
        ("a\n", "illegal characters"),
        ("a\0", "illegal characters"),
        ("ü", "illegal characters"),
        ("x" * 128, "longer than topic max length 127"),
        ("%RETRY%" + "x" * 249, "longer than topic max length 255"),
        ("%DLQ%" + "x" * 251, "longer than topic max length 255"),
    ],
)
def test_the_problem_of_an_invalid_topic_name_is_described(topic: str, words: str) -> None:
    assert words in (names.topic_problem(topic) or "")


@pytest.mark.parametrize("prefix", [names.RETRY_PREFIX, names.DEAD_LETTER_PREFIX])
def test_topic_names_of_a_group_may_be_long(prefix: str) -> None:
    assert names.topic_problem(prefix + "x" * (255 - len(prefix))) is None


def test_system_topics_are_recognized() -> None:
    for topic in ("SCHEDULE_TOPIC_XXXX", "TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "rmq_sys_any"):
        assert names.is_system_topic(topic)
    for topic in ("T", "RMQ_SYS", "%RETRY%g", "_rmq_sys_"):
        assert not names.is_system_topic(topic)


def test_clients_may_not_send_to_internal_topics() -> None:
    assert {
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",  # Apache lets clients send there
        "rmq_sys_wheelmq_block",
        "rmq_sys_wheelmq_batch",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    } == names.NOT_FOR_SENDING


def test_a_group_has_a_retry_and_a_dead_letter_topic() -> None:
    assert names.retry_topic("g") == "%RETRY%g"
    assert names.dead_letter_topic("g") == "%DLQ%g"
