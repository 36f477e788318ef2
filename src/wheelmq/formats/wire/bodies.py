"""JSON bodies (RocketMQ: remoting.protocol.body, .heartbeat, .route).

Readers ignore unknown keys and use defaults for missing ones. They accept Java's forms too: unquoted number keys, and
bare objects as queue keys, of which they return the text. The writers quote numbers, which every client accepts (see
the route's note in docs/request-codes.md). queue_tables writes maps by queue.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from wheelmq.formats.buffer import Buffer
from wheelmq.formats.disk.batch import BatchPart
from wheelmq.formats.java import java_hash, java_trim
from wheelmq.formats.wire.headers import Int32, Int64

if TYPE_CHECKING:
    from typing_extensions import Self

B = TypeVar("B")

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4

TOPIC_UNIT = 1
TOPIC_UNIT_SUB = 2
"""Bits of a topic's system flag (RocketMQ: TopicSysFlag): the topic is of a unit; consumers of a unit subscribe."""


class BodyError(ValueError):
    """A request's body is not the JSON that its code needs. The message names the place."""


class Body(msgspec.Struct, rename="camel", kw_only=True):
    """Base of the JSON bodies."""


class DataVersion(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """The number of changes of a table, and the time of the last one."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


class TimingCount(Body):
    """The number of a topic's pending messages, and the time of its last change."""

    count: int = 0
    time_stamp: int = 0


class TimerMetrics(Body):
    """Number of pending messages in the timer, by topic: config/timermetrics, and the body of GET_TIMER_METRICS."""

    data_version: DataVersion = DataVersion()
    timing_count: dict[str, TimingCount] = {}


class TransactionMetrics(Body):
    """Number of half messages without an outcome, by topic: config/transactionMetrics."""

    data_version: DataVersion = DataVersion()
    transaction_count: dict[str, TimingCount] = {}


class TopicConfig(Body):
    topic_name: str = ""
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] = {}

    def text(self) -> str:
        """Return the text of the topic in Apache RocketMQ's answers (RocketMQ: TopicConfig.toString)."""
        flags = ((PERM_READ, "R"), (PERM_WRITE, "W"), (PERM_INHERIT, "X"))
        perm = "".join(letter if self.perm & flag else "-" for flag, letter in flags)
        attributes = ", ".join(f"{name}={value}" for name, value in self.attributes.items())
        return (
            f"TopicConfig [topicName={self.topic_name}, readQueueNums={self.read_queue_nums}, "
            f"writeQueueNums={self.write_queue_nums}, perm={perm}, topicFilterType={self.topic_filter_type}, "
            f"topicSysFlag={self.topic_sys_flag}, order={str(self.order).lower()}, attributes={{{attributes}}}]"
        )


class GroupRetryPolicy(Body):
    """The retry times of a group's messages. The broker stores and returns them. Only proxies use them."""

    type: str = "CUSTOMIZED"
    exponential_retry_policy: dict[str, Any] | None = None
    customized_retry_policy: dict[str, Any] | None = None


class GroupConfig(Body):
    """A consumer group (RocketMQ: SubscriptionGroupConfig)."""

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    group_retry_policy: GroupRetryPolicy = msgspec.field(default_factory=GroupRetryPolicy)
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int32 = 0
    consume_timeout_minute: Int32 = 15
    subscription_data_set: list[dict[str, Any]] | None = None
    attributes: dict[str, str] = {}


class GroupConfigList(Body):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: list[GroupConfig] = []


class TopicConfigList(Body):
    """UPDATE_AND_CREATE_TOPIC_LIST."""

    topic_config_list: list[TopicConfig] = []


TAG: Final = "TAG"


class Subscription(Body):
    """A consumer's filter for a topic (RocketMQ: SubscriptionData)."""

    topic: str = ""
    sub_string: str = "*"
    tags_set: list[str] = []
    code_set: list[int] = []
    sub_version: int = 0
    expression_type: str | None = TAG
    class_filter_mode: bool = False

    @property
    def is_by_tags(self) -> bool:
        """Whether `sub_string` is a tag expression (RocketMQ: ExpressionType.isTagType)."""
        return self.expression_type in (None, "", TAG)

    @classmethod
    def of_tags(cls, topic: str, text: str, version: int = 0) -> Self:
        """Return the subscription for `*`, or tags between `||` (RocketMQ: FilterAPI). Raises ValueError."""
        if text in ("", "*"):
            return cls(topic=topic, sub_string="*", sub_version=version)
        tags = [tag for part in text.split("||") if (tag := java_trim(part))]
        if not tags:
            raise ValueError(f"{text!r} has no tags: write * for all messages, or tags with || between them")
        codes = [java_hash(tag) for tag in tags]
        return cls(topic=topic, sub_string=text, tags_set=tags, code_set=codes, sub_version=version)


_ORDINALS: Final = {
    "consume_type": ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP"),
    "message_model": ("BROADCASTING", "CLUSTERING"),
    "consume_from_where": (
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ),
}
"""The names of Java's enums in their order (RocketMQ: ConsumeType, MessageModel, ConsumeFromWhere)."""


class ConsumerData(Body):
    """A consumer group in a heartbeat. The C++ client sends three of its names as numbers. They are names here."""

    group_name: str
    consume_type: str | int = "CONSUME_PASSIVELY"
    message_model: str | int = "CLUSTERING"
    consume_from_where: str | int = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[Subscription] = []
    unit_mode: bool = False

    def __post_init__(self) -> None:
        for field, names in _ORDINALS.items():
            number = getattr(self, field)
            if isinstance(number, int):
                if not 0 <= number < len(names):
                    raise ValueError(f"{field} is {number}: send a name, or 0 to {len(names) - 1}")
                setattr(self, field, names[number])


class ClientCheck(Body):
    """CHECK_CLIENT_CONFIG (RocketMQ: CheckClientRequestBody)."""

    client_id: str | None = None
    group: str | None = None
    subscription_data: Subscription | None = None


class ProducerData(Body):
    """A producer group in a heartbeat."""

    group_name: str


class Heartbeat(Body):
    """HEART_BEAT."""

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: int = 0
    without_sub: bool = msgspec.field(default=False, name="withoutSub")


class QueueName(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A queue by name (RocketMQ: MessageQueue)."""

    broker_name: str
    queue_id: int
    topic: str


class LockBatch(Body):
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    client_id: str
    consumer_group: str
    mq_set: list[QueueName] = []
    only_this_broker: bool = False


class TopicConfigTable(Body):
    """The topics of a broker, as it registers them and keeps them in topics.json."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}


class Registration(Body):
    """The body of REGISTER_BROKER."""

    topic_config_serialize_wrapper: TopicConfigTable = msgspec.field(default_factory=TopicConfigTable)
    filter_server_list: list[str] = []


class QueueData(Body):
    """A broker's queues of one topic, in a route."""

    broker_name: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_sys_flag: Int32 = 0


class BrokerData(Body):
    """A broker name's addresses by broker id, in a route."""

    broker_name: str
    cluster: str
    broker_addrs: dict[int, str]
    enable_acting_master: bool = False


class BrokerMembers(Body):
    """The live brokers of one name, by id."""

    broker_addrs: dict[int, str] = {}


class MemberGroup(Body):
    """The answer to GET_BROKER_MEMBER_GROUP."""

    broker_member_group: BrokerMembers = msgspec.field(default_factory=BrokerMembers)


class Route(Body):
    """GET_ROUTEINFO_BY_TOPIC."""

    broker_datas: list[BrokerData] = []
    queue_datas: list[QueueData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None


MASTER_ID: Final = 0


def masters(brokers: Iterable[BrokerData]) -> dict[str, str]:
    return {data.broker_name: data.broker_addrs[MASTER_ID] for data in brokers if MASTER_ID in data.broker_addrs}


class BatchParts(Body):
    """WMQ_BATCH_COMMIT: the uploads whose rows belong to the batch."""

    parts: list[BatchPart] = []


class BatchQueues(Body):
    """WMQ_BATCH_LAYOUT: the queues that can get rows of a batch. Without a topic there is no layout."""

    topics: dict[str, dict[str, int]] = {}
    """The number of queues at each broker, by topic and name of the broker."""


class ClusterInfo(Body):
    """GET_BROKER_CLUSTER_INFO."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


_MANY: Final = b"*+" if sys.version_info >= (3, 11) else b"*"
"""Repeats the greatest number of times. Python 3.10 finds the same, and keeps a state for each repetition."""
_TEXT_OR_BARE_KEY = re.compile(rb'"(?:[^"\\]|\\.)%b"?|([{,]\s*)(-?\d+|\{[^{}]%b\})(\s*:)' % (_MANY, _MANY), re.DOTALL)
"""Matches each string as a whole, so that no key is found inside it. An object used as a key has no inner object."""


def read(raw: Buffer, body: type[B]) -> B:
    """Return the body in `raw`: standard JSON, or JSON with Java's bare keys. Raises BodyError."""
    text = bytes(raw)
    try:
        return msgspec.json.decode(text, type=body, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        quoted = _TEXT_OR_BARE_KEY.sub(_quote_key, text)
        try:
            return msgspec.json.decode(quoted, type=body, strict=False)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BodyError(f"{getattr(body, '__name__', body)}: {error}") from None


def _quote_key(found: re.Match[bytes]) -> bytes:
    if found[2] is None:
        return found[0]
    key = re.sub(rb"[\t\n\r]", b" ", found[2]).replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    return b'%b"%b"%b' % (found[1], key, found[3])


def write(body: Any) -> bytes:
    """Return `body` as JSON, without the fields that are None."""
    raw = msgspec.json.encode(body)
    if b":null" not in raw:  # the usual case: a table of 11,000 topics takes 4 ms here, and 90 ms below
        return raw
    return msgspec.json.encode(_without_none(msgspec.to_builtins(body, str_keys=True)))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_none(inner) for inner in value]
    return value
