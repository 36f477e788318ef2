"""The outcomes of a put, and their answers (RocketMQ: PutMessageStatus). The table is in docs/operations."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from wheelmq.broker.answers import PeerError
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.system.disk import StoreRemoved

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker


class PutStatus(StrEnum):
    """The outcomes by their names in Apache RocketMQ, without those of replicas, which do not exist here."""

    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"
    WHEEL_TIMER_MSG_ILLEGAL = "WHEEL_TIMER_MSG_ILLEGAL"
    WHEEL_TIMER_FLOW_CONTROL = "WHEEL_TIMER_FLOW_CONTROL"
    WHEEL_TIMER_NOT_ENABLE = "WHEEL_TIMER_NOT_ENABLE"


CODES: Final = {
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.CREATE_MAPPED_FILE_FAILED: ResponseCode.SYSTEM_ERROR,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.OS_PAGE_CACHE_BUSY: ResponseCode.SYSTEM_BUSY,
    PutStatus.UNKNOWN_ERROR: ResponseCode.SYSTEM_ERROR,
    PutStatus.WHEEL_TIMER_MSG_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.WHEEL_TIMER_FLOW_CONTROL: ResponseCode.SYSTEM_ERROR,
    PutStatus.WHEEL_TIMER_NOT_ENABLE: ResponseCode.SYSTEM_ERROR,
}


class PutFailed(PeerError):
    """A put that stored nothing: its status, and the answer to the send."""

    def __init__(self, broker: Broker, status: PutStatus, detail: object = "") -> None:
        remark = _remark(broker, status)
        super().__init__(CODES[status], f"{remark} ({detail})" if detail else remark)
        broker.stats.failed_puts += 1
        self.status = status


def _remark(broker: Broker, status: PutStatus) -> str:
    """Return the text with which Apache's broker answers, because clients and dashboards know it."""
    settings = broker.settings
    match status:
        case PutStatus.SERVICE_NOT_AVAILABLE if isinstance(broker.health.failure, StoreRemoved):
            return "service not available now: message store has been shut down."
        case PutStatus.SERVICE_NOT_AVAILABLE:
            used = f"{broker.disk.used_share(broker.paths.root):5.2f}"
            return (
                "service not available now. It may be caused by one of the following reasons: the broker's disk is full"
                f" [CL: {used} CQ: {used} INDEX: {used}], messages are put to the slave, message store has been shut"
                " down, etc."
            )
        case PutStatus.CREATE_MAPPED_FILE_FAILED:
            return "create mapped file failed, server is busy or broken."
        case PutStatus.MESSAGE_ILLEGAL | PutStatus.PROPERTIES_SIZE_EXCEEDED:
            return (
                "the message is illegal, maybe msg body or properties length not matched. "
                f"msg body length limit {settings.body_bytes_max}B, msg properties length limit 32KB."
            )
        case PutStatus.OS_PAGE_CACHE_BUSY:
            return "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
        case PutStatus.WHEEL_TIMER_MSG_ILLEGAL:
            return (
                "timer message illegal, the delay time should not be bigger than the max delay "
                f"{settings.timer_max_delay_seconds * 1000}ms; or if set del msg, the delay time should be bigger than "
                "the current time"
            )
        case PutStatus.WHEEL_TIMER_FLOW_CONTROL:
            limit = settings.timer_congest_num_each_slot
            return (
                f"timer message is under flow control, max num limit is {limit * 2} or the current value is greater "
                f"than {limit} and less than {limit * 2}, trigger random flow control"
            )
        case PutStatus.WHEEL_TIMER_NOT_ENABLE:
            return "accurate timer message is not enabled, timerWheelEnable is false"
        case _:
            return status.value
