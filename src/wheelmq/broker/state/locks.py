"""Queues locked by one client of a group, for orderly consumption (RocketMQ: RebalanceLockManager)."""

from __future__ import annotations

from wheelmq.formats.wire.bodies import QueueName


class QueueLocks:
    """Locks by group and queue; each lapses when it is not renewed. Times are monotonic milliseconds."""

    def __init__(self, expiry_ms: int) -> None:
        self._expiry_ms = expiry_ms
        self._locks: dict[str, dict[QueueName, tuple[str, int]]] = {}

    def lock(self, group: str, queues: list[QueueName], client_id: str, now_ms: int) -> list[QueueName]:
        """Lock or renew; the queues that the client holds now."""
        locks = self._locks.setdefault(group, {})
        held = []
        for queue in queues:
            owner, renewed_ms = locks.get(queue, (client_id, now_ms))
            if owner == client_id or now_ms - renewed_ms > self._expiry_ms:
                locks[queue] = (client_id, now_ms)
                held.append(queue)
        return held

    def unlock(self, group: str, queues: list[QueueName], client_id: str) -> None:
        """Give up the locks that the client holds."""
        locks = self._locks.get(group, {})
        for queue in queues:
            if locks.get(queue, ("", 0))[0] == client_id:
                del locks[queue]

    def any_held(self, group: str, now_ms: int) -> bool:
        """Whether the group consumes in order: it holds a lock that has not lapsed."""
        return any(now_ms - renewed_ms <= self._expiry_ms for _, renewed_ms in self._locks.get(group, {}).values())
