"""The answers to puts that stored nothing, and their count."""

from __future__ import annotations

from collections.abc import Callable

from wheelmq.broker.admission.put_status import PutFailed, PutStatus
from wheelmq.broker.admission.store_health import StoreHealth
from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.statistics import BrokerStats
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.wire.frame import Command
from wheelmq.system.disk import Disk, StoreRemoved


class FailedPuts:
    """Counts each failed put once, where its exception becomes an answer."""

    def __init__(
        self, settings: BrokerSettings, health: StoreHealth, disk: Disk, paths: StorePaths, stats: BrokerStats
    ) -> None:
        self._settings = settings
        self._health = health
        self._disk = disk
        self._paths = paths
        self._stats = stats

    def answer(self, failed: PutFailed) -> Command:
        """Count a failed put, and return its answer. Raises OSError if the disk cannot be read."""
        answer = failed_put_answer(failed, self._settings, self._used_share, self._health)
        self._stats.note_failed_put()
        return answer

    def _used_share(self) -> float:
        return self._disk.used_share(self._paths.root)


def failed_put_answer(
    failed: PutFailed, settings: BrokerSettings, used_share: Callable[[], float], health: StoreHealth
) -> Command:
    """Return the answer to a failed put. `used_share` returns the used share of the store's disk, 0 to 1."""
    remark = failed.remark
    if remark is None:
        remark = _remark(failed.status, settings, used_share, health)
        if failed.detail:
            remark += f" ({failed.detail})"
    return Command(code=failed.code, remark=remark)


def _remark(status: PutStatus, settings: BrokerSettings, used_share: Callable[[], float], health: StoreHealth) -> str:
    """Return the text with which Apache's broker answers, because clients and dashboards know it."""
    match status:
        case PutStatus.SERVICE_NOT_AVAILABLE if isinstance(health.failure, StoreRemoved):
            return "service not available now: message store has been shut down."
        case PutStatus.SERVICE_NOT_AVAILABLE:
            used = f"{used_share():5.2f}"
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
                f"msg body length limit {settings.requests.body_bytes_max}B, msg properties length limit 32KB."
            )
        case PutStatus.OS_PAGE_CACHE_BUSY:
            return "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
        case PutStatus.WHEEL_TIMER_MSG_ILLEGAL:
            return (
                "timer message illegal, the delay time should not be bigger than the max delay "
                f"{settings.timer.max_delay_seconds * 1000}ms; or if set del msg, the delay time should be bigger than "
                "the current time"
            )
        case PutStatus.WHEEL_TIMER_FLOW_CONTROL:
            limit = settings.timer.congest_num_each_slot
            return (
                f"timer message is under flow control, max num limit is {limit * 2} or the current value is greater "
                f"than {limit} and less than {limit * 2}, trigger random flow control"
            )
        case PutStatus.WHEEL_TIMER_NOT_ENABLE:
            return "accurate timer message is not enabled, timerWheelEnable is false"
        case _:
            return status.value
