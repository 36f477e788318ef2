"""Names of topics and groups (RocketMQ: TopicValidator)."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")

TOPIC_CHARS_MAX: Final = 127
GROUP_CHARS_MAX: Final = 255
RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
RETRY_TOPIC_CHARS_MAX: Final = 255

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
BLOCK_TOPIC: Final = "rmq_sys_wheelmq_block"
"""The topic of the records in a block's own log. The commit log holds no record of it."""
DEAD_LETTER_TOPIC: Final = "rmq_sys_wheelmq_dead_letter"
"""The topic of parked messages that can never be delivered. They keep their properties and get their origin."""
BATCH_TOPIC: Final = "rmq_sys_wheelmq_batch"
"""The topic of the marks before the rows of batches (formats/disk/batch.py)."""
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT: Final = "OFFSET_MOVED_EVENT"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group under which the broker stores its offsets in the transaction queues."""
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
_PULL_ALWAYS: Final = frozenset(
    (
        "DEFAULT_CONSUMER",
        "TOOLS_CONSUMER",
        "SCHEDULE_CONSUMER",
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
    )
)
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
SYSTEM_PREFIX: Final = "rmq_sys_"
REPLY_TOPIC_END: Final = "_REPLY_TOPIC"

SYSTEM_TOPICS: Final = frozenset(
    (
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        TRACE_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        "CHECKPOINT_TOPIC",
    )
)
_OF_PROXIES: Final = frozenset(("DefaultHeartBeatSyncerTopic", "SchedulingTopic"))
NOT_FOR_SENDING: Final = frozenset(
    (
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        BLOCK_TOPIC,
        BATCH_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
    )
)
"""Topics that clients may not send to. In the timer and block topics, a message would count as parked by the broker."""


def topic_problem(topic: str) -> str | None:
    if not topic.strip():
        return "The specified topic is blank."
    if not _NAME.fullmatch(topic):
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    longest = RETRY_TOPIC_CHARS_MAX if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) else TOPIC_CHARS_MAX
    if len(topic) > longest:
        return f"The specified topic is longer than topic max length {longest}."
    return None


def group_problem(group: str) -> str | None:
    """Return the error in the group name `group`, or None, in RocketMQ's words (Validators.checkGroup)."""
    if not group.strip():
        return "the specified group is blank"
    if len(group) > GROUP_CHARS_MAX:
        return f"the specified group is longer than group max length {GROUP_CHARS_MAX}."
    if not _NAME.fullmatch(group):
        return "the specified group contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return None


def may_always_pull(group: str) -> bool:
    """Return whether `group` belongs to a tool, which may always pull (RocketMQ: isSysConsumerGroupPullMessage)."""
    return group in _PULL_ALWAYS or group.startswith(SYSTEM_GROUP_PREFIX)


def is_system_group(group: str) -> bool:
    """Return whether only servers use the group (RocketMQ: BrokerMetricsManager.isSystemGroup)."""
    return group.upper().startswith(SYSTEM_GROUP_PREFIX)


def is_of_retries(topic: str) -> bool:
    """Return whether `topic` is a retry topic or a dead-letter topic of a group."""
    return topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def reply_topic(cluster: str) -> str:
    """Return the topic that stores a cluster's replies to requests (RocketMQ: MixAll.getReplyTopic)."""
    return cluster + REPLY_TOPIC_END


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def is_internal_topic(topic: str, server_names: Container[str] = ()) -> bool:
    """Return whether `topic` belongs to servers or groups, so that lists of users' topics leave it out.

    `server_names` are the names of clusters and brokers. Each has a topic with its own name.
    """
    return (
        topic.startswith("%")
        or topic.endswith(REPLY_TOPIC_END)
        or topic in _OF_PROXIES
        or topic in server_names
        or is_system_topic(topic)
    )


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return DEAD_LETTER_PREFIX + group


def delete_key(real_topic: str, unique_key: str) -> str:
    """Return the long form of a delete key: topic, `+`, unique key (RocketMQ: TimerMessageStore.buildDeleteKey)."""
    return f"{real_topic}+{unique_key}"
