"""Names of topics and groups (RocketMQ: TopicValidator)."""

from __future__ import annotations

import re
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
"""Of the records in a block's own log; the commit log has none of it."""
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT: Final = "OFFSET_MOVED_EVENT"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group under whose name it is kept how far the queues of transactions are done with."""
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
NOT_FOR_SENDING: Final = frozenset(
    (
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        BLOCK_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
    )
)
"""As with Apache RocketMQ, and the timer queue, and that of blocks: what a client put there itself would be taken for
what the broker parked."""


def topic_problem(topic: str) -> str | None:
    """What is wrong with `topic` as a name, in RocketMQ's words; None when it is one."""
    if not topic.strip():
        return "The specified topic is blank."
    if not _NAME.fullmatch(topic):
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    longest = RETRY_TOPIC_CHARS_MAX if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) else TOPIC_CHARS_MAX
    if len(topic) > longest:
        return f"The specified topic is longer than topic max length {longest}."
    return None


def group_problem(group: str) -> str | None:
    """What is wrong with `group` as a name, in RocketMQ's words (Validators.checkGroup); None when it is one."""
    if not group.strip():
        return "the specified group is blank"
    if len(group) > GROUP_CHARS_MAX:
        return f"the specified group is longer than group max length {GROUP_CHARS_MAX}."
    if not _NAME.fullmatch(group):
        return "the specified group contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return None


def may_always_pull(group: str) -> bool:
    """Whether a group is one of tools, which may pull where others have to push (isSysConsumerGroupPullMessage)."""
    return group in _PULL_ALWAYS or group.startswith("CID_RMQ_SYS_")


def reply_topic(cluster: str) -> str:
    """Where a cluster keeps the replies to requests (RocketMQ: MixAll.getReplyTopic)."""
    return f"{cluster}_REPLY_TOPIC"


def is_system_topic(topic: str) -> bool:
    """Whether only the broker makes and removes the topic."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def retry_topic(group: str) -> str:
    """Where a group's messages wait for another try."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Where a group's messages end that were tried too often."""
    return DEAD_LETTER_PREFIX + group
