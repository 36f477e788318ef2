"""The rule of each request code: the rights that it needs, and whether the audit log has a line for it.

A test compares the table with all request codes, so no code is unchecked. The actions are those of Apache RocketMQ
5.3.3 if it checks the code. It checks nothing for a code whose header has no class, such as UPDATE_BROKER_CONFIG.
docs/request-codes.md lists the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wheelmq.auth import needs
from wheelmq.auth.needs import Need, cluster, group, message_topic, topic, topic_or_cluster
from wheelmq.auth.policies import Action
from wheelmq.formats.names import AUTO_CREATE_TOPIC
from wheelmq.formats.wire.codes import RequestCode as Code


@dataclass(frozen=True)
class Rule:
    """The needs of a request. A user needs each of `needs`; with authentication, each request needs a user."""

    needs: tuple[Need, ...] = ()
    why_free: str = ""
    """Why every user may send the request, if it has no needs."""
    is_audited: bool = False
    by_lease: bool = False
    """Whether the token of the pipeline's lease replaces the signature. The handler compares it."""
    is_always_checked: bool = False
    """Whether the request needs its rights even if authentication and authorization are off."""
    is_local_without_users: bool = False
    """Whether only this machine may send the request while authentication is off. Otherwise a stranger could plant a
    user before an operator turns it on."""

    @property
    def text(self) -> str:
        """Return the rule for the page on request codes."""
        if self.by_lease:
            return "token of the lease"
        return "; ".join(need.text for need in self.needs) if self.needs else f"any user: {self.why_free}"


def _of(*found: Need) -> Rule:
    return Rule(found)


def _audited(*found: Need) -> Rule:
    return Rule(found, is_audited=True)


ALL, PUB, SUB = Action.ALL, Action.PUB, Action.SUB
CREATE, UPDATE, DELETE, GET = Action.CREATE, Action.UPDATE, Action.DELETE, Action.GET

_SEND: Final = _of(topic("topic", PUB, retry=(SUB,)), needs.cancelled_topic("properties"))
_SEND_V2: Final = _of(topic("b", PUB, retry=(SUB,)), needs.cancelled_topic("i"))
_PULL: Final = _of(topic("topic", SUB), group("consumerGroup", SUB))
_QUEUE: Final = _of(topic("topic", GET))
_GET: Final = _of(cluster(GET))
_UPDATE: Final = _audited(cluster(UPDATE))
_CHANGE_USERS: Final = Rule((cluster(UPDATE),), is_audited=True, is_local_without_users=True)
_READ_USERS: Final = Rule((cluster(GET),), is_audited=True, is_local_without_users=True)
_COPY: Final = _of(needs.replica())
_LEASE: Final = Rule(by_lease=True)
_TO_CLIENTS: Final = Rule(why_free="a broker sends it to clients, and serves it to nobody")
_UNSERVED: Final = Rule(why_free="no server serves it")
_ROUTING: Final = Rule(why_free="each route names these addresses too")

RULES: Final[dict[Code, Rule]] = {
    # Messages
    Code.SEND_MESSAGE: _SEND,
    Code.SEND_MESSAGE_V2: _SEND_V2,
    Code.SEND_BATCH_MESSAGE: _SEND_V2,
    Code.SEND_REPLY_MESSAGE: _SEND,
    Code.SEND_REPLY_MESSAGE_V2: _SEND_V2,
    Code.RECALL_MESSAGE: _of(topic("topic", PUB)),
    Code.END_TRANSACTION: _of(message_topic("commitLogOffset", PUB, fallback="topic")),
    Code.RESUME_CHECK_HALF_MESSAGE: _UPDATE,
    Code.CONSUMER_SEND_MSG_BACK: _of(group("group", SUB), message_topic("offset", SUB)),
    Code.PULL_MESSAGE: _PULL,
    Code.LITE_PULL_MESSAGE: _PULL,
    Code.POP_MESSAGE: _PULL,
    Code.PEEK_MESSAGE: _PULL,
    Code.NOTIFICATION: _PULL,
    Code.POLLING_INFO: _PULL,
    Code.ACK_MESSAGE: _PULL,
    Code.CHANGE_MESSAGE_INVISIBLETIME: _PULL,
    Code.BATCH_ACK_MESSAGE: _of(needs.ACKS),
    Code.POP_ROLLBACK: _UPDATE,
    Code.QUERY_MESSAGE: _of(topic("topic", SUB, GET)),
    Code.VIEW_MESSAGE_BY_ID: _of(message_topic("offset", SUB, GET, fallback="topic")),
    # Clients
    Code.HEART_BEAT: _of(needs.HEARTBEAT),
    Code.UNREGISTER_CLIENT: _of(group("consumerGroup", SUB, optional=True)),
    Code.CHECK_CLIENT_CONFIG: _of(needs.CLIENT_CHECK),
    Code.GET_CONSUMER_LIST_BY_GROUP: _of(group("consumerGroup", SUB, GET)),
    Code.LOCK_BATCH_MQ: _of(needs.LOCKS),
    Code.UNLOCK_BATCH_MQ: _of(needs.LOCKS),
    Code.QUERY_ASSIGNMENT: _of(needs.ASSIGNMENT),
    Code.SET_MESSAGE_REQUEST_MODE: _UPDATE,
    Code.GET_ALL_MESSAGE_REQUEST_MODE: _GET,
    # Offsets
    Code.QUERY_CONSUMER_OFFSET: _of(topic("topic", SUB, GET), group("consumerGroup", SUB, GET)),
    Code.UPDATE_CONSUMER_OFFSET: _of(topic("topic", SUB, UPDATE), group("consumerGroup", SUB, UPDATE)),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _of(topic("topic", SUB, GET)),
    Code.GET_MAX_OFFSET: _of(topic("topic", SUB, GET)),
    Code.GET_MIN_OFFSET: _of(topic("topic", SUB, GET)),
    Code.GET_EARLIEST_MSG_STORETIME: _of(topic("topic", SUB, GET)),
    Code.GET_ALL_CONSUMER_OFFSET: _GET,
    Code.GET_ALL_DELAY_OFFSET: _GET,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _audited(topic("topic", UPDATE), group("group", UPDATE)),
    Code.CLONE_GROUP_OFFSET: _audited(
        group("srcGroup", GET), group("destGroup", UPDATE), topic("topic", UPDATE, optional=True)
    ),
    Code.QUERY_CORRECTION_OFFSET: _of(topic("topic", GET), group("compareGroup", GET)),
    # Topics
    Code.UPDATE_AND_CREATE_TOPIC: _audited(topic("topic", CREATE)),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _audited(needs.CREATED_TOPICS),
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: _audited(topic("topic", CREATE)),
    Code.DELETE_TOPIC_IN_BROKER: _audited(topic("topic", DELETE)),
    Code.GET_ALL_TOPIC_CONFIG: _GET,
    Code.GET_TOPIC_CONFIG: _QUEUE,
    Code.GET_TOPIC_STATS_INFO: _QUEUE,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _GET,
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _QUEUE,
    Code.QUERY_CONSUME_QUEUE: _of(topic("topic", GET), group("consumerGroup", GET, optional=True)),
    # Groups
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _audited(needs.CREATED_GROUP),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _audited(needs.CREATED_GROUPS),
    Code.DELETE_SUBSCRIPTIONGROUP: _audited(group("groupName", DELETE)),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _GET,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _of(group("group", GET)),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _audited(group("group", UPDATE), topic("topic", UPDATE)),
    Code.GET_CONSUMER_CONNECTION_LIST: _of(group("consumerGroup", GET)),
    Code.GET_PRODUCER_CONNECTION_LIST: _GET,
    Code.GET_ALL_PRODUCER_INFO: _GET,
    Code.GET_CONSUME_STATS: _of(group("consumerGroup", GET), topic("topic", GET, optional=True)),
    Code.GET_BROKER_CONSUME_STATS: _GET,
    Code.QUERY_CONSUME_TIME_SPAN: _of(topic("topic", GET), group("group", GET)),
    Code.QUERY_TOPICS_BY_CONSUMER: _of(group("group", GET)),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _of(group("group", GET), topic("topic", GET)),
    Code.GET_CONSUMER_RUNNING_INFO: _of(group("consumerGroup", GET)),
    Code.CONSUME_MESSAGE_DIRECTLY: _audited(group("consumerGroup", SUB), message_topic("msgId", SUB, by_id=True)),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _of(group("group", GET), topic("topic", GET)),
    # Settings and figures of a broker
    Code.UPDATE_BROKER_CONFIG: _UPDATE,
    Code.GET_BROKER_CONFIG: _GET,
    Code.GET_BROKER_RUNTIME_INFO: _GET,
    Code.VIEW_BROKER_STATS_DATA: _GET,
    Code.GET_TIMER_CHECK_POINT: _GET,
    Code.GET_TIMER_METRICS: _GET,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _UPDATE,
    Code.CLEAN_UNUSED_TOPIC: _UPDATE,
    Code.DELETE_EXPIRED_COMMITLOG: _UPDATE,
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _UPDATE,
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _UPDATE,
    Code.GET_COLD_DATA_FLOW_CTR_INFO: _GET,
    Code.SET_COMMITLOG_READ_MODE: _UPDATE,
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _GET,
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: _GET,
    # Users and access lists
    Code.AUTH_CREATE_USER: _CHANGE_USERS,
    Code.AUTH_UPDATE_USER: _CHANGE_USERS,
    Code.AUTH_DELETE_USER: _CHANGE_USERS,
    Code.AUTH_GET_USER: _READ_USERS,
    Code.AUTH_LIST_USER: _READ_USERS,
    Code.AUTH_CREATE_ACL: _CHANGE_USERS,
    Code.AUTH_UPDATE_ACL: _CHANGE_USERS,
    Code.AUTH_DELETE_ACL: _CHANGE_USERS,
    Code.AUTH_GET_ACL: _READ_USERS,
    Code.AUTH_LIST_ACL: _READ_USERS,
    # The name server
    Code.GET_ROUTEINFO_BY_TOPIC: _of(topic("topic", PUB, SUB, GET, retry=(SUB, GET), but=(AUTO_CREATE_TOPIC,))),
    Code.GET_BROKER_CLUSTER_INFO: _ROUTING,
    Code.PUT_KV_CONFIG: _UPDATE,
    Code.GET_KV_CONFIG: _GET,
    Code.DELETE_KV_CONFIG: _UPDATE,
    Code.GET_KVLIST_BY_NAMESPACE: _GET,
    Code.REGISTER_BROKER: _of(cluster(UPDATE, of="clusterName")),
    Code.UNREGISTER_BROKER: _of(cluster(UPDATE, of="clusterName")),
    Code.QUERY_DATA_VERSION: _of(cluster(GET, of="clusterName")),
    Code.GET_BROKER_MEMBER_GROUP: _of(cluster(GET, of="clusterName")),
    Code.BROKER_HEARTBEAT: _of(cluster(UPDATE, of="clusterName")),
    Code.WIPE_WRITE_PERM_OF_BROKER: _UPDATE,
    Code.ADD_WRITE_PERM_OF_BROKER: _UPDATE,
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _GET,
    Code.DELETE_TOPIC_IN_NAMESRV: _audited(topic("topic", DELETE)),
    Code.REGISTER_TOPIC_IN_NAMESRV: _audited(topic("topic", CREATE)),
    Code.GET_TOPICS_BY_CLUSTER: _of(cluster(GET, of="cluster")),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: _GET,
    Code.GET_UNIT_TOPIC_LIST: _GET,
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: _GET,
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _GET,
    Code.UPDATE_NAMESRV_CONFIG: _UPDATE,
    Code.GET_NAMESRV_CONFIG: _GET,
    # Replicas and controllers
    Code.ADD_BROKER: _UPDATE,
    Code.REMOVE_BROKER: _UPDATE,
    Code.NOTIFY_MIN_BROKER_ID_CHANGE: _UPDATE,
    Code.EXCHANGE_BROKER_HA_INFO: _UPDATE,
    Code.GET_BROKER_HA_STATUS: _GET,
    Code.RESET_MASTER_FLUSH_OFFSET: _UPDATE,
    Code.CONTROLLER_ALTER_SYNC_STATE_SET: _UPDATE,
    Code.CONTROLLER_ELECT_MASTER: _UPDATE,
    Code.CONTROLLER_REGISTER_BROKER: _UPDATE,
    Code.CONTROLLER_GET_REPLICA_INFO: _GET,
    Code.CONTROLLER_GET_METADATA_INFO: _GET,
    Code.CONTROLLER_GET_SYNC_STATE_DATA: _GET,
    Code.GET_BROKER_EPOCH_CACHE: _GET,
    Code.NOTIFY_BROKER_ROLE_CHANGED: _UPDATE,
    Code.UPDATE_CONTROLLER_CONFIG: _UPDATE,
    Code.GET_CONTROLLER_CONFIG: _GET,
    Code.CLEAN_BROKER_DATA: _UPDATE,
    Code.CONTROLLER_GET_NEXT_BROKER_ID: _UPDATE,
    Code.CONTROLLER_APPLY_BROKER_ID: _UPDATE,
    # WheelMQ's own
    Code.WMQ_PIPELINE_OPEN: Rule((needs.pipeline(),), is_always_checked=True),
    Code.WMQ_PIPELINE_PLAN: _LEASE,
    Code.WMQ_PIPELINE_UPLOAD: _LEASE,
    Code.WMQ_PIPELINE_COMMIT: _LEASE,
    Code.WMQ_PIPELINE_RENEW: _LEASE,
    Code.WMQ_PIPELINE_READ: _LEASE,
    Code.WMQ_LIST_TIMERS: _of(topic_or_cluster("topic", GET)),
    Code.WMQ_BATCH_UPLOAD: _of(topic("topic", PUB)),
    Code.WMQ_BATCH_COMMIT: _of(needs.BATCH_TOPICS),
    Code.WMQ_BATCH_LAYOUT: _of(needs.LAYOUT_TOPICS),
    Code.WMQ_METRICS: _GET,
    Code.WMQ_METRIC_FAMILIES: _GET,
    Code.WMQ_COUNT_TIMERS: _of(topic_or_cluster("topic", GET)),
    Code.WMQ_FIND_TIMERS: _QUEUE,
    Code.WMQ_REPLICATION_STATE: _of(cluster(GET), needs.replica_ticket()),
    Code.WMQ_GET_FILTERS: _GET,
    Code.WMQ_PROMOTE: _UPDATE,
    Code.WMQ_HAND_OVER: _UPDATE,
    Code.WMQ_CHECK_BLOCKS: _COPY,
    Code.WMQ_READ_BLOCKS: _COPY,
    # Not served to anybody
    **dict.fromkeys(
        (
            Code.CHECK_TRANSACTION_STATE,
            Code.NOTIFY_CONSUMER_IDS_CHANGED,
            Code.RESET_CONSUMER_CLIENT_OFFSET,
            Code.GET_CONSUMER_STATUS_FROM_CLIENT,
            Code.PUSH_REPLY_MESSAGE_TO_CLIENT,
        ),
        _TO_CLIENTS,
    ),
    **dict.fromkeys(
        (
            Code.QUERY_BROKER_OFFSET,
            Code.GET_TOPIC_CONFIG_LIST,
            Code.GET_TOPIC_NAME_LIST,
            Code.TRIGGER_DELETE_FILES,
            Code.GET_CLIENT_CONFIG,
            Code.SUSPEND_CONSUMER,
            Code.RESUME_CONSUMER,
            Code.RESET_CONSUMER_OFFSET_IN_CONSUMER,
            Code.RESET_CONSUMER_OFFSET_IN_BROKER,
            Code.ADJUST_CONSUMER_THREAD_POOL,
            Code.WHO_CONSUME_THE_MESSAGE,
            Code.REGISTER_FILTER_SERVER,
            Code.REGISTER_MESSAGE_FILTER_CLASS,
        ),
        _UNSERVED,
    ),
}
"""By request code."""
UNKNOWN: Final = Rule(why_free="the code is unknown, so the answer is that it is not supported")
"""The rule of a code that is not in the table."""

LONG_POLLS: Final = frozenset((Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, Code.WMQ_READ_BLOCKS))
"""Requests that may be held for long. Their rights are checked again before their answer leaves."""
NEVER_LISTED: Final = frozenset(
    code
    for code in Code
    if code.name.startswith(("AUTH_", "WMQ_PIPELINE_"))
    or code in (Code.UPDATE_BROKER_CONFIG, Code.WMQ_REPLICATION_STATE, Code.WMQ_CHECK_BLOCKS, Code.WMQ_READ_BLOCKS)
)
"""Codes that no whitelist may have: with one of them, anyone could get all other rights, or all messages."""


def rule_of(code: int) -> Rule:
    """Return the rule of a code."""
    return RULES.get(code, UNKNOWN)  # type: ignore[call-overload,no-any-return]
