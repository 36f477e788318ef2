"""Decide whether the store takes messages now.

RocketMQ: SendMessageProcessor.preSend, HookUtils.checkBeforePutMessage. Only puts of clients are checked. Parked
messages are released as long as there is any room for them.

In Apache's broker, a put can hang because the system writes pages back before it provides new ones. A lock that is
held too long shows this. Here one loop does all work, so no request can check while a put hangs. A request that
arrives meanwhile is served later in the same round. So the age of the round replaces the age of the lock. Past the
limit, the broker rejects the remaining sends of the round with SYSTEM_BUSY. The age of the next round starts at zero.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from wheelmq.broker.admission.put_status import PutFailed, PutStatus
from wheelmq.broker.request import PeerError
from wheelmq.formats.wire.codes import ResponseCode

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

log = logging.getLogger(__name__)


class Admission:
    """The check before each put, and before the kernel serves sends."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        if not broker.settings.is_master:
            log.warning(
                "%s: sends and transactions are rejected, and nothing is replicated. Set broker_id=0 for a broker "
                "that accepts messages",
                slave_text(broker),
            )
        self._is_stopping = False
        self._full: str | None = None
        self.check_disk()

    def rejection(self) -> str | None:
        """Return why the broker stores no messages now; None if it stores them."""
        if self._is_stopping:
            return "the broker is stopping"
        if not self._broker.settings.is_master:
            return slave_text(self._broker)
        return self._broker.health.rejection or self._full

    def check_put(self) -> None:
        """Check that the store takes messages now. Raises PutFailed."""
        rejection = self.rejection()
        if rejection is not None:
            raise PutFailed(PutStatus.SERVICE_NOT_AVAILABLE, rejection)
        if 1000 * self._broker.ticks.elapsed_s > self._broker.settings.os_page_cache_busy_time_out_mills:
            raise PutFailed(PutStatus.OS_PAGE_CACHE_BUSY)

    def check_open(self) -> None:
        """Check that the time has come from which the broker takes sends. Raises PeerError."""
        opens_ms = self._broker.settings.start_accept_send_request_time_stamp
        if self._broker.clock.now_ms() < opens_ms:
            raise PeerError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {_local(opens_ms)}")

    @property
    def takes_sends(self) -> bool:
        """Whether the broker stores a valid send now."""
        opens_ms = self._broker.settings.start_accept_send_request_time_stamp
        return self._broker.clock.now_ms() >= opens_ms and self.rejection() is None

    def stop(self) -> None:
        """Store no more messages for clients: the broker stops."""
        self._is_stopping = True

    def check_disk(self) -> None:
        """Read the used share of the disk. Past the limit, the rest of the disk is kept for due messages."""
        used = 100 * self._broker.disk.used_share(self._broker.paths.root)
        is_full = used > self._broker.settings.disk_space_warning_level_ratio
        self._full = f"the disk is {used:.0f} % full" if is_full else None


def slave_text(broker: Broker) -> str:
    """Return the reason why this broker stores no messages for clients."""
    return f"the broker has the id {broker.settings.broker_id}, so it is a slave and stores no messages"


def _local(ms: int) -> str:
    """Return a time as Apache's broker writes it: local, with milliseconds."""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(ms // 1000))},{ms % 1000:03d}"
