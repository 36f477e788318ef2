"""Headers: the typed view of a request's extFields (RocketMQ: remoting.protocol.header).

Unknown fields are ignored. A field without a default must be there; numbers and booleans travel as strings.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from wheelmq.formats.java import java_boolean
from wheelmq.formats.units import NEVER_MS

H = TypeVar("H", bound="Header")

Int32 = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""Numbers as Java's headers have them: what does not fit is refused before anything is done."""


class HeaderError(ValueError):
    """A request's header lacks a field or holds what does not fit; the message names it."""


class Header(msgspec.Struct, rename="camel", kw_only=True):
    """Base of the request headers."""


def read(ext: dict[str, str], header: type[H]) -> H:
    """The header in a request's extFields. Raises HeaderError.

    What is no number is refused; of a truth value all but `true` is false, as in Java: the C++ client writes 1.
    """
    odd = [name for name in _truth_values(header) if ext.get(name, "false") not in ("true", "false")]
    if odd:
        ext = {**ext, **{name: str(java_boolean(ext[name])).lower() for name in odd}}
    try:
        return msgspec.convert(ext, header, strict=False)
    except msgspec.ValidationError as error:
        raise HeaderError(f"{header.__name__}: {error}") from None


@lru_cache(None)
def _truth_values(header: type[Header]) -> tuple[str, ...]:
    """The fields of a header that hold one, by their names on the wire."""
    return tuple(one.encode_name for one in msgspec.structs.fields(header) if one.type in (bool, bool | None))


def write(header: Header) -> dict[str, str]:
    """The extFields that say `header`; a field that is None is left out."""
    return texts(**msgspec.to_builtins(header))


VERSION_WITH_MAX_TIMES: Final = 121
"""V3_4_9: older clients send no maxReconsumeTimes that counts."""


class SendHeader(Header, kw_only=True):
    """SEND_MESSAGE; SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE say the same in letters. Apache's broker does not miss the
    group, though it has it as one that must be there."""

    producer_group: str = ""
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    batch: bool = False
    max_reconsume_times: Int32 | None = None


_SEND_LETTERS: Final = dict(
    zip(
        "abcdefghijklm",
        (
            "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp",
            "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch",
        ),
        strict=True,
    )
)  # fmt: skip


def read_send_v2(ext: dict[str, str]) -> SendHeader:
    """The send header of a request that names its fields by letters. Raises HeaderError."""
    return read({_SEND_LETTERS[name]: value for name, value in ext.items() if name in _SEND_LETTERS}, SendHeader)


def write_send_v2(header: SendHeader) -> dict[str, str]:
    """The extFields of a request that names its fields by letters."""
    fields = msgspec.to_builtins(header)
    return texts(**{letter: fields[name] for letter, name in _SEND_LETTERS.items()})


class PullHeader(Header):
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None


PULL_COMMIT_OFFSET: Final = 0x1
PULL_SUSPEND: Final = 0x2
PULL_SUBSCRIPTION: Final = 0x4
PULL_LITE: Final = 0x10


class QueryMessageHeader(Header):
    """QUERY_MESSAGE; the times are store times."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64


UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""Beside its fields: `true` when the key is a unique one (RocketMQ: MixAll.UNIQUE_MSG_QUERY_FLAG)."""


class ViewMessageHeader(Header):
    """VIEW_MESSAGE_BY_ID; `offset` is a log position."""

    offset: Int64


class QueryConsumerOffsetHeader(Header):
    """QUERY_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(Header):
    """UPDATE_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Int32 | None = None
    commit_offset: Int64 | None = None


class QueueHeader(Header):
    """GET_MAX_OFFSET, GET_MIN_OFFSET and others that name a queue."""

    topic: str
    queue_id: Int32


class SearchOffsetHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str = "LOWER"


class SendBackHeader(Header):
    """CONSUMER_SEND_MSG_BACK; `offset` is a log position."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class UnregisterClientHeader(Header):
    """UNREGISTER_CLIENT."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroupHeader(Header):
    """GET_CONSUMER_LIST_BY_GROUP and others that name a group."""

    consumer_group: str


class ClientOfGroupHeader(Header):
    """GET_CONSUMER_RUNNING_INFO and CONSUME_MESSAGE_DIRECTLY: a client of a consumer group."""

    consumer_group: str
    client_id: str | None = None
    topic: str | None = None
    msg_id: str | None = None


class RecallHeader(Header):
    """RECALL_MESSAGE."""

    topic: str
    recall_handle: str = ""
    producer_group: str = ""


class EndTransactionHeader(Header):
    """END_TRANSACTION, of the half message at a log position and a queue offset; what becomes of it is 8 to commit,
    12 to roll back, 0 not known yet."""

    position: Int64 = msgspec.field(name="commitLogOffset")
    queue_offset: Int64 = msgspec.field(name="tranStateTableOffset")
    commit_or_rollback: Int32
    producer_group: str | None = None
    from_transaction_check: bool = False
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    bname: str | None = None


class ResumeCheckHeader(Header):
    """RESUME_CHECK_HALF_MESSAGE."""

    msg_id: str


class RegisterBrokerHeader(Header):
    """REGISTER_BROKER, at the name server."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool = False
    compressed: bool = False
    body_crc32: Int32 = 0


class UnregisterBrokerHeader(Header):
    """UNREGISTER_BROKER, at the name server."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class TopicHeader(Header):
    """GET_ROUTEINFO_BY_TOPIC and others that name a topic."""

    topic: str


class CreateTopicHeader(Header):
    """UPDATE_AND_CREATE_TOPIC."""

    topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    default_topic: str = ""
    topic_filter_type: Literal["SINGLE_TAG", "MULTI_TAG"] = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: str = ""


class GroupHeader(Header):
    """GET_SUBSCRIPTIONGROUP_CONFIG and others that name a group."""

    group: str


class DeleteGroupHeader(Header):
    """DELETE_SUBSCRIPTIONGROUP."""

    group_name: str
    clean_offset: bool = False


class ForbiddenHeader(Header):
    """UPDATE_AND_GET_GROUP_FORBIDDEN."""

    group: str
    topic: str
    readable: bool | None = None


class ProducerGroupHeader(Header):
    """GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str


class ConsumeStatsHeader(Header):
    """GET_CONSUME_STATS: of a topic, of several between semicolons, or of all that the group consumes."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class BrokerConsumeStatsHeader(Header):
    """GET_BROKER_CONSUME_STATS: of all topics, or of those in order."""

    is_order: bool = False


class TopicAndGroupHeader(Header):
    """QUERY_CONSUME_TIME_SPAN, QUERY_SUBSCRIPTION_BY_CONSUMER."""

    topic: str
    group: str


class CorrectionHeader(Header):
    """QUERY_CORRECTION_OFFSET; `filter_groups` has commas between groups that do not count."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


class CloneHeader(Header):
    """CLONE_GROUP_OFFSET."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class StatsHeader(Header):
    """VIEW_BROKER_STATS_DATA."""

    stats_name: str
    stats_key: str


class ConsumeQueueHeader(Header):
    """QUERY_CONSUME_QUEUE: units of a queue, and whether they pass the filter of a group."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class DeleteTopicHeader(Header):
    """DELETE_TOPIC_IN_NAMESRV."""

    topic: str
    cluster_name: str | None = None


class BrokerNameHeader(Header):
    """WIPE_WRITE_PERM_OF_BROKER, ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str


class ClusterHeader(Header):
    """GET_TOPICS_BY_CLUSTER."""

    cluster: str


class MemberGroupHeader(Header):
    """GET_BROKER_MEMBER_GROUP."""

    cluster_name: str
    broker_name: str


class BrokerAddressHeader(Header):
    """BROKER_HEARTBEAT."""

    broker_addr: str


class KvHeader(Header):
    """PUT_KV_CONFIG, GET_KV_CONFIG, DELETE_KV_CONFIG."""

    namespace: str
    key: str
    value: str | None = None


class NamespaceHeader(Header):
    """GET_KVLIST_BY_NAMESPACE."""

    namespace: str


class PipelineHeader(Header):
    """WMQ_PIPELINE_OPEN: who asks for the lease."""

    name: str


class TurnHeader(Header):
    """WMQ_PIPELINE_PLAN, _RENEW, _COMMIT: which lease, and which turn."""

    epoch: Int64
    turn: Int64 = 0
    timeout_ms: Int64 = 1000


class UploadHeader(Header):
    """WMQ_PIPELINE_UPLOAD: one chunk of one task attempt's rows."""

    epoch: Int64
    turn: Int64
    kind: str
    part: Int32
    attempt: Int64
    chunk: Int64


class ReadHeader(Header):
    """WMQ_PIPELINE_READ: which portion of the store a task of this turn asks for; its ranges are the body."""

    epoch: Int64
    turn: Int64
    kind: str
    name: str = ""


class PortionHeader(Header):
    """What answers WMQ_PIPELINE_READ: ranges that the body covers, its crc32, and where log files begin and end."""

    count: Int64
    crc: Int64
    log_start: Int64
    log_end: Int64


class ListTimersHeader(Header):
    """WMQ_LIST_TIMERS: pending messages from a place on, which is an origin; 0 is the first."""

    place: Int64 = 0
    count: Int32 = 1000
    topic: str | None = None
    from_ms: Int64 = 0
    to_ms: Int64 = NEVER_MS


class CountTimersHeader(Header):
    """WMQ_COUNT_TIMERS: how many are due in each `step_ms`."""

    step_ms: Int64
    place: Int64 = 0
    topic: str | None = None
    from_ms: Int64 = 0
    to_ms: Int64 = NEVER_MS


class FindTimersHeader(Header):
    """WMQ_FIND_TIMERS: delayed messages by unique key, or by one of their keys; from a place on, as WMQ_LIST_TIMERS."""

    topic: str
    key: str
    place: Int64 = 0


def texts(**fields: Any) -> dict[str, str]:
    """Answer header fields as strings, the only form every client reads; None is left out."""
    return {
        name: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for name, value in fields.items()
        if value is not None
    }
