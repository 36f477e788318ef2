"""Reject requests that would wait too long (RocketMQ: rejectRequest, RequestTask, BrokerFastFailure).

Apache's broker has a bounded queue for each group of request codes. Here one loop serves all requests, and the queue of
a group is its part of a round of reading. A request has waited as long as the round is old, or longer if its peer does
not read its answers. docs/adr/0021-a-queue-is-a-round.md.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from wheelmq.broker.admission.store_health import StoreHealth
from wheelmq.broker.connection import Connection, peer_text
from wheelmq.broker.replication.role import Role
from wheelmq.broker.settings import BrokerSettings
from wheelmq.formats.wire.codes import RequestCode as Code
from wheelmq.observe.ticks import Ticks
from wheelmq.system.clock import Clock
from wheelmq.system.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)


class RequestGroup(NamedTuple):
    """Requests that share a queue, with the keys in [queues] of its size and of the longest wait in it."""

    name: str
    capacity: str
    wait_ms: str | None = None
    """None means no limit."""


SEND: Final = RequestGroup("send", "send_max", "send_wait_ms")
PULL: Final = RequestGroup("pull", "pull_max", "pull_wait_ms")
LITE_PULL: Final = RequestGroup("lite pull", "lite_pull_max", "lite_pull_wait_ms")
REPLY: Final = RequestGroup("reply", "reply_max")
QUERY: Final = RequestGroup("query", "query_max")
HEARTBEAT: Final = RequestGroup("heartbeat", "heartbeat_max", "heartbeat_wait_ms")
CLIENTS: Final = RequestGroup("client manager", "client_manager_max")
CONSUMERS: Final = RequestGroup("consumer manager", "consumer_manager_max")
ENDS: Final = RequestGroup("end transaction", "end_transaction_max", "end_transaction_wait_ms")
ADMIN: Final = RequestGroup("admin", "admin_max", "admin_wait_ms")
"""Every code that is neither in another group nor in UNBOUNDED, unknown codes too."""

UNBOUNDED: Final = frozenset(
    (
        Code.UPDATE_BROKER_CONFIG,
        Code.GET_BROKER_CONFIG,
        *(code for code in Code if code.name.startswith("WMQ_")),
    )
)
"""Codes without a group. No setting of a group can lock out the request that corrects it, the pipeline, or metrics."""

GROUPS: Final[dict[int, RequestGroup]] = {
    Code.SEND_MESSAGE: SEND,
    Code.SEND_MESSAGE_V2: SEND,
    Code.SEND_BATCH_MESSAGE: SEND,
    Code.CONSUMER_SEND_MSG_BACK: SEND,
    Code.RECALL_MESSAGE: SEND,
    Code.PULL_MESSAGE: PULL,
    Code.LITE_PULL_MESSAGE: LITE_PULL,
    Code.SEND_REPLY_MESSAGE: REPLY,
    Code.SEND_REPLY_MESSAGE_V2: REPLY,
    Code.QUERY_MESSAGE: QUERY,
    Code.VIEW_MESSAGE_BY_ID: QUERY,
    Code.HEART_BEAT: HEARTBEAT,
    Code.UNREGISTER_CLIENT: CLIENTS,
    Code.CHECK_CLIENT_CONFIG: CLIENTS,
    Code.GET_CONSUMER_LIST_BY_GROUP: CONSUMERS,
    Code.UPDATE_CONSUMER_OFFSET: CONSUMERS,
    Code.QUERY_CONSUMER_OFFSET: CONSUMERS,
    Code.END_TRANSACTION: ENDS,
}
"""The groups with which Apache's BrokerController registers its processors."""

_REJECTED_BY_SLAVES: Final = frozenset(
    (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.CONSUMER_SEND_MSG_BACK)
)
"""The codes of SendMessageProcessor, whose rejectRequest is true on a slave of Apache RocketMQ 5.3.3."""
_REJECT: Final = "[REJECTREQUEST]system busy, start flow control for a while"


class Rejection(NamedTuple):
    """Why a request is rejected: the counter that counts it, and the remark of its answer."""

    kind: str
    remark: str


class OverloadGuard:
    """The check before each request is served, and before the kernel serves sends."""

    def __init__(self, settings: BrokerSettings, role: Role, health: StoreHealth, clock: Clock, ticks: Ticks) -> None:
        self._settings = settings
        self._role = role
        self._health = health
        self._clock = clock
        self._ticks = ticks
        self._taken: dict[RequestGroup, int] = {}
        """Requests of this round, by group."""
        self._log = RateLimitedLog(log, clock.monotonic)

    def rejection(self, connection: Connection, code: int) -> Rejection | None:
        """Return why a request is not served now. If it is served, count it as taken and return None."""
        if code in UNBOUNDED:
            return None
        group = GROUPS.get(code, ADMIN)
        found = self._rejection_of_slave(code) or self._rejection(connection, group)
        if found is None:
            self._taken[group] = self._taken.get(group, 0) + 1
        else:
            text = "a request of the group %s from %s is rejected and may be retried: %s"
            self._log.warn(found.kind + group.name, text, group.name, peer_text(connection), found.remark)
        return found

    def sends_left(self, connection: Connection) -> int:
        """Return the number of sends of `connection` that this round may still serve."""
        if not self._role.is_master or self._rejection(connection, SEND) is not None:
            return 0
        return self.capacity(SEND) - self._taken.get(SEND, 0)

    def took_sends(self, count: int) -> None:
        self._taken[SEND] = self._taken.get(SEND, 0) + count

    def end_round(self) -> None:
        self._taken.clear()

    def _rejection_of_slave(self, code: int) -> Rejection | None:
        """Return the rejection of a send to a slave; None for other requests, and on a master."""
        if self._role.is_master or code not in _REJECTED_BY_SLAVES:
            return None
        return Rejection("rejected", f"{_REJECT} ({self._role.slave_text})")

    def _rejection(self, connection: Connection, group: RequestGroup) -> Rejection | None:
        if self._health.failure is not None:
            return None  # the broker stops, and the admission rejects sends with the reason
        settings = self._settings
        round_ms = round(1000 * self._ticks.elapsed_s)
        if group is SEND and round_ms > settings.requests.tick_age_ms_max:
            return Rejection("rejected", _REJECT)
        ahead = self._taken.get(group, 0)
        if ahead >= self.capacity(group):
            return Rejection("overloaded", "[OVERLOAD]system busy, start flow control for a while")
        if group.wait_ms is None or not settings.queues.fast_failure:
            return None
        waited_ms = round_ms
        if connection.waiting_since is not None:
            waited_ms = max(waited_ms, round(1000 * (self._clock.monotonic() - connection.waiting_since)))
        if waited_ms < getattr(settings.queues, group.wait_ms):
            return None
        return Rejection(
            "timed_out",
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
            f"period in queue: {waited_ms}ms, size of queue: {ahead}",
        )

    def size(self, group: RequestGroup) -> int:
        return self._taken.get(group, 0)

    def capacity(self, group: RequestGroup) -> int:
        found: int = getattr(self._settings.queues, group.capacity)
        return found
