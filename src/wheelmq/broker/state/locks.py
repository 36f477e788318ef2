"""Queues locked by one client of a group, for orderly consumption (RocketMQ: RebalanceLockManager)."""

from __future__ import annotations

from typing import Final

from wheelmq.formats.wire.bodies import QueueName

LOCKS_MAX: Final = 1_000_000
"""Maximum locks. Clients name the queues, which need not exist."""


class QueueLocks:
    """Locks by group and queue. A lock lapses if it is not renewed. Times are monotonic milliseconds."""

    def __init__(self, expiry_ms: int, count_max: int = LOCKS_MAX) -> None:
        self._expiry_ms = expiry_ms
        self._count_max = count_max
        self._locks: dict[str, dict[QueueName, tuple[str, int]]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return the number of locks, including lapsed ones that are not deleted yet."""
        return self._count

    def lock(self, group: str, queues: list[QueueName], client_id: str, now_ms: int) -> list[QueueName]:
        """Lock or renew queues. Returns the queues that the client holds now."""
        if self._count + len(queues) > self._count_max:
            self.drop_lapsed(now_ms)
        locks = self._locks.setdefault(group, {})
        held = []
        for queue in queues:
            known = locks.get(queue)
            if known is None:
                if self._count >= self._count_max:
                    continue
                self._count += 1
            elif known[0] != client_id and not self._has_lapsed(known, now_ms):
                continue
            locks[queue] = (client_id, now_ms)
            held.append(queue)
        if not locks:
            del self._locks[group]
        return held

    def unlock(self, group: str, queues: list[QueueName], client_id: str) -> None:
        locks = self._locks.get(group, {})
        for queue in queues:
            if locks.get(queue, ("", 0))[0] == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._locks.pop(group, None)

    def any_held(self, group: str, now_ms: int) -> bool:
        """Return whether the group consumes in order: it holds a lock that has not lapsed."""
        return any(not self._has_lapsed(lock, now_ms) for lock in self._locks.get(group, {}).values())

    def drop_lapsed(self, now_ms: int) -> None:
        for group, locks in list(self._locks.items()):
            kept = {queue: lock for queue, lock in locks.items() if not self._has_lapsed(lock, now_ms)}
            self._count -= len(locks) - len(kept)
            if kept:
                self._locks[group] = kept
            else:
                del self._locks[group]

    def _has_lapsed(self, lock: tuple[str, int], now_ms: int) -> bool:
        return now_ms - lock[1] > self._expiry_ms
