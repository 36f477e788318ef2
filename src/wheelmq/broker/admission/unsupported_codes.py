"""Request codes that are answered REQUEST_CODE_NOT_SUPPORTED, and the reasons. A test checks that none is missing."""

from __future__ import annotations

from typing import Final

from wheelmq.formats.wire.codes import RequestCode as Code

_UNSERVED: Final = "Apache RocketMQ 5.3.3 defines the code and no longer serves it"
_ADMIN: Final = "a request of administrators that clients do not need"
_POP: Final = "belongs to POP consumption"
_STATIC: Final = "belongs to static topics"
_REPLICAS: Final = "belongs to a part of replication that WheelMQ does not have"
_CONTROLLER: Final = "a request to the controller, which is a process of Apache RocketMQ"
_COLD: Final = "belongs to cold data: there is no tiered storage"
_ROCKSDB: Final = "belongs to queues in RocksDB: WheelMQ has queue files"

UNSUPPORTED: Final[dict[Code, str]] = {
    Code.QUERY_BROKER_OFFSET: _UNSERVED,
    Code.GET_TOPIC_CONFIG_LIST: _UNSERVED,
    Code.GET_TOPIC_NAME_LIST: _UNSERVED,
    Code.TRIGGER_DELETE_FILES: _UNSERVED,
    Code.GET_CLIENT_CONFIG: _UNSERVED,
    Code.SUSPEND_CONSUMER: _UNSERVED,
    Code.RESUME_CONSUMER: _UNSERVED,
    Code.RESET_CONSUMER_OFFSET_IN_CONSUMER: _UNSERVED,
    Code.RESET_CONSUMER_OFFSET_IN_BROKER: _UNSERVED,
    Code.ADJUST_CONSUMER_THREAD_POOL: _UNSERVED,
    Code.WHO_CONSUME_THE_MESSAGE: _UNSERVED,
    Code.REGISTER_FILTER_SERVER: _UNSERVED,
    Code.REGISTER_MESSAGE_FILTER_CLASS: _UNSERVED,
    Code.QUERY_ASSIGNMENT: _POP,
    Code.SET_MESSAGE_REQUEST_MODE: _POP,
    Code.POP_MESSAGE: _POP,
    Code.ACK_MESSAGE: _POP,
    Code.BATCH_ACK_MESSAGE: _POP,
    Code.PEEK_MESSAGE: _POP,
    Code.CHANGE_MESSAGE_INVISIBLETIME: _POP,
    Code.NOTIFICATION: _POP,
    Code.POLLING_INFO: _POP,
    Code.POP_ROLLBACK: _POP,
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: _STATIC,
    Code.ADD_BROKER: _REPLICAS,
    Code.REMOVE_BROKER: _REPLICAS,
    Code.NOTIFY_MIN_BROKER_ID_CHANGE: _REPLICAS,
    Code.EXCHANGE_BROKER_HA_INFO: _REPLICAS,
    Code.RESET_MASTER_FLUSH_OFFSET: _REPLICAS,
    Code.CONTROLLER_ALTER_SYNC_STATE_SET: _CONTROLLER,
    Code.CONTROLLER_ELECT_MASTER: _CONTROLLER,
    Code.CONTROLLER_REGISTER_BROKER: _CONTROLLER,
    Code.CONTROLLER_GET_REPLICA_INFO: _CONTROLLER,
    Code.CONTROLLER_GET_METADATA_INFO: _CONTROLLER,
    Code.CONTROLLER_GET_SYNC_STATE_DATA: _CONTROLLER,
    Code.UPDATE_CONTROLLER_CONFIG: _CONTROLLER,
    Code.GET_CONTROLLER_CONFIG: _CONTROLLER,
    Code.CLEAN_BROKER_DATA: _CONTROLLER,
    Code.CONTROLLER_GET_NEXT_BROKER_ID: _CONTROLLER,
    Code.CONTROLLER_APPLY_BROKER_ID: _CONTROLLER,
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    Code.GET_COLD_DATA_FLOW_CTR_INFO: _COLD,
    Code.SET_COMMITLOG_READ_MODE: _COLD,
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _ROCKSDB,
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: _ROCKSDB,
}

REASONS: Final[dict[int, str]] = {int(code): reason for code, reason in UNSUPPORTED.items() if reason != _UNSERVED}
"""The reasons in answers to clients, for the codes that Apache serves and WheelMQ does not."""
