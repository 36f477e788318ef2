"""Settings that the clients reject."""

from __future__ import annotations

import pytest

from wheelmq.client import ConsumerSettings, Producer, ProducerSettings, PullConsumer, PullSettings


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (ConsumerSettings, "concurrency"),
        (ConsumerSettings, "pull_count"),
        (PullSettings, "keep_alive_ms"),
        (PullSettings, "in_hand_max"),
        (ProducerSettings, "timeout_ms"),
        (ProducerSettings, "new_topic_queues"),
    ],
)
def test_settings_reject_zero_where_one_is_the_minimum(settings: type, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0: it must be at least 1"):
        settings(**{name: 0})


def test_a_client_checks_names_and_addresses_when_created() -> None:
    with pytest.raises(ValueError, match="is not a valid group"):
        Producer("127.0.0.1:9876", ProducerSettings(group="a/b"))
    with pytest.raises(ValueError, match="is not a valid group"):
        PullConsumer("127.0.0.1:9876", "")
    with pytest.raises(ValueError, match="write HOST:PORT"):
        PullConsumer("localhost:", "G")
