"""Maps by queue, in the form of Java and in JSON."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wheelmq.formats.wire import bodies, queue_tables
from wheelmq.formats.wire.administration import ConsumeStats, QueueOffsets, TopicStats
from wheelmq.formats.wire.bodies import BodyError, QueueName

NAMES = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="{}"), max_size=8)
QUEUES = st.builds(QueueName, broker_name=NAMES, queue_id=st.integers(0, 99), topic=NAMES)
ONE = QueueName(topic="T", broker_name="b", queue_id=1)


@given(st.dictionaries(QUEUES, st.integers(-1, 1 << 62)))
@example({QueueName(broker_name="", queue_id=0, topic="a  b"): 0})
def test_a_written_table_is_read_back(table: dict[QueueName, int]) -> None:
    raw = queue_tables.write(offsetTable=table)
    assert queue_tables.by_queue(bodies.read(raw, QueueOffsets).texts()) == table


def test_a_table_is_written_in_the_form_of_java() -> None:
    assert queue_tables.write(offsetTable={ONE: 7}, more=[1], none=None) == (
        b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:7},"more":[1]}'
    )


def test_a_key_may_have_several_lines() -> None:
    raw = b'{"offsetTable":{{\r\n\t"brokerName":"b",\n\t"queueId":1,\n\t"topic":"T"\n}:7}}'
    assert queue_tables.by_queue(bodies.read(raw, QueueOffsets).texts()) == {ONE: 7}


def test_keys_may_be_texts_and_tables_may_be_lists() -> None:
    for raw in (
        rb'{"offsetTable":{"{\"brokerName\":\"b\",\"queueId\":1,\"topic\":\"T\"}":7}}',
        b'{"offsetTable":[[{"topic":"T","brokerName":"b","queueId":1},7]]}',
    ):
        assert queue_tables.by_queue(bodies.read(raw, QueueOffsets).texts()) == {ONE: 7}


def test_values_may_be_objects() -> None:
    """Apache's broker answers requests 202 and 208 in this form."""
    raw = (
        b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:{"lastUpdateTimestamp":3,"maxOffset":9,'
        b'"minOffset":2},{"brokerName":"b","queueId":2,"topic":"T"}:{"lastUpdateTimestamp":0}}}'
    )
    stats = queue_tables.by_queue(bodies.read(raw, TopicStats).offset_table)
    assert (stats[ONE].min_offset, stats[ONE].max_offset, len(stats)) == (2, 9, 2)
    raw = (
        b'{"consumeTps":0.5,"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:'
        b'{"brokerOffset":9,"consumerOffset":4}}}'
    )
    assert queue_tables.by_queue(bodies.read(raw, ConsumeStats).offset_table)[ONE].behind == 5


@pytest.mark.parametrize("key", ["{}", "T", '{"queueId":"x"}'])
def test_a_key_that_is_no_queue_is_rejected(key: str) -> None:
    with pytest.raises(BodyError, match="not a queue"):
        queue_tables.by_queue({key: 1})
