"""Whether the store takes messages now (RocketMQ: SendMessageProcessor.preSend, HookUtils.checkBeforePutMessage).

Only what clients put is asked about: what was parked is released as long as there is room for it at all.

A put that hangs, because the system writes pages back before it gives new ones, shows in Apache's broker as a lock held
for too long. Here one loop does everything, so nobody can ask while it hangs; whoever asked meanwhile is met later in
the same round. So the age of the round stands for that of the lock: past the limit, the rest of its sends are told to
come again, and the next round begins anew.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from wheelmq.broker.put_status import PutFailed, PutStatus
from wheelmq.broker.request import PeerError
from wheelmq.formats.wire.codes import ResponseCode

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

log = logging.getLogger(__name__)


class Admission:
    """Asked before each put, and before the kernel serves sends."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        if not broker.is_master:
            log.warning(
                "%s: sends and transactions are rejected, and nothing is replicated. Set broker_id=0 for a broker that "
                "takes messages",
                slave_text(broker),
            )
        self._is_stopping = False
        self._full: str | None = None
        self.check_disk()

    def rejection(self) -> str | None:
        """Why nothing is stored; None when it is."""
        if self._is_stopping:
            return "the broker stops"
        if not self._broker.is_master:
            return slave_text(self._broker)
        return self._broker.rejection or self._full

    def problem(self) -> PeerError | None:
        """The answer to a put that is not admitted; None when it is."""
        broker = self._broker
        rejection = self.rejection()
        if rejection is not None:
            return PutFailed(broker, PutStatus.SERVICE_NOT_AVAILABLE, rejection)
        if 1000 * broker.ticks.elapsed_s > broker.settings.os_page_cache_busy_time_out_mills:
            return PutFailed(broker, PutStatus.OS_PAGE_CACHE_BUSY)
        return None

    def before_opening(self) -> PeerError | None:
        """The answer to a send before the time at which sends are taken; None from then on."""
        opens_ms = self._broker.settings.start_accept_send_request_time_stamp
        if self._broker.clock.now_ms() >= opens_ms:
            return None
        return PeerError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {_local(opens_ms)}")

    @property
    def takes_sends(self) -> bool:
        """Whether a send that is in order is stored now."""
        return self.before_opening() is None and self.rejection() is None and self._broker.failure is None

    def stop(self) -> None:
        """The broker stops: nothing more is stored for clients."""
        self._is_stopping = True

    def check_disk(self) -> None:
        """Take the share of the disk that is used; past the limit what is left is kept for what is due."""
        used = 100 * self._broker.disk.used_share(self._broker.paths.root)
        is_full = used > self._broker.settings.disk_space_warning_level_ratio
        self._full = f"the disk is {used:.0f} % full" if is_full else None


def slave_text(broker: Broker) -> str:
    """Return the reason why this broker stores no messages for clients."""
    return f"the broker has the id {broker.settings.broker_id}, so it is a slave and stores no messages"


def _local(ms: int) -> str:
    """A time as Apache's broker writes it: local, to the millisecond."""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(ms // 1000))},{ms % 1000:03d}"
