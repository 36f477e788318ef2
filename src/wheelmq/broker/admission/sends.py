"""Decide whether the store takes messages now.

RocketMQ: SendMessageProcessor.preSend, HookUtils.checkBeforePutMessage. Only puts of clients are checked. Parked
messages are released as long as there is any room for them.

In Apache's broker, a lock that is held too long shows that a put hangs while the system writes pages back. Here no
request can check while a put hangs, but those after it in the round are late. So the age of the round replaces the age
of the lock. Past the limit, the broker rejects the rest of the round with SYSTEM_BUSY.
"""

from __future__ import annotations

import logging
import time

from wheelmq.broker.admission.put_status import PutFailed, PutStatus
from wheelmq.broker.admission.store_health import StoreHealth
from wheelmq.broker.answers import PeerError
from wheelmq.broker.replication.controller.sync_state_set import SyncStateSet
from wheelmq.broker.replication.role import Role
from wheelmq.broker.settings import BrokerSettings
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.observe.ticks import Ticks
from wheelmq.store.journal import Journal
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk

log = logging.getLogger(__name__)


class Admission:
    """The check before each put, and before the kernel serves sends."""

    def __init__(
        self,
        settings: BrokerSettings,
        role: Role,
        health: StoreHealth,
        clock: Clock,
        ticks: Ticks,
        disk: Disk,
        paths: StorePaths,
        journal: Journal,
        in_sync: SyncStateSet | None = None,
    ) -> None:
        """Create the object. `in_sync` has the replicas in sync at a controller."""
        self._settings = settings
        self._role = role
        self._health = health
        self._clock = clock
        self._ticks = ticks
        self._disk = disk
        self._paths = paths
        self._journal = journal
        self._in_sync = in_sync
        self._is_stopping = False
        self._full: str | None = None
        self.check_disk()

    def rejection(self) -> str | None:
        """Return why the broker stores no messages now; None if it stores them."""
        if self._is_stopping:
            return "the broker is stopping"
        if not self._role.is_master:
            return self._role.slave_text
        least = self._settings.controller.min_in_sync_replicas
        if self._in_sync is not None and len(self._in_sync.members) < least:
            return f"in-sync replicas not enough: {len(self._in_sync.members)} of {least} (min_in_sync_replicas)"
        if self._journal.is_full:
            return f"{self._journal.count} records wait for replicas, which do not keep up"
        return self._health.rejection or self._full

    def check_put(self) -> None:
        """Check that the store takes messages now. Raises PutFailed."""
        rejection = self.rejection()
        if rejection is not None:
            raise PutFailed(PutStatus.SERVICE_NOT_AVAILABLE, rejection)
        if 1000 * self._ticks.elapsed_s > self._settings.requests.tick_age_ms_max:
            raise PutFailed(PutStatus.OS_PAGE_CACHE_BUSY)

    def check_open(self) -> None:
        opens_ms = self._settings.requests.sends_from_ms
        if self._clock.now_ms() < opens_ms:
            raise PeerError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {_local(opens_ms)}")

    @property
    def takes_sends(self) -> bool:
        opens_ms = self._settings.requests.sends_from_ms
        return self._clock.now_ms() >= opens_ms and self.rejection() is None

    def stop(self) -> None:
        self._is_stopping = True

    def check_disk(self) -> None:
        """Read the used share of the disk. Past the limit, the rest of the disk is kept for due messages."""
        used = 100 * self._disk.used_share(self._paths.root)
        is_full = used > self._settings.expiry.refuse_percent
        self._full = f"the disk is {used:.0f} % full" if is_full else None


def _local(ms: int) -> str:
    """Return a time as Apache's broker writes it: local, with milliseconds."""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(ms // 1000))},{ms % 1000:03d}"
