"""A harness that does each start twice: with the snapshot, and on a copy of the store without it.

Both starts must have the same result. A snapshot only saves a walk over the log.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from wheelmq.broker.broker import Broker
from wheelmq.delay import refs as ref
from wheelmq.delay.timer.lookup import find_parked
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.origin import TIMER_STREAM
from wheelmq.formats.disk.parked import delete_key
from wheelmq.testing import invariants
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness


def recovered(broker: Broker) -> dict[str, Any]:
    """Return the state that a start has recovered, by name."""
    store, timer, parked = broker.parts.store, broker.parts.timer, broker.parts.timer.pending
    keys = {key: row for row, (key, _) in enumerate(store.queues.items())}
    log = invariants.read_log(broker)
    properties = [record.message.properties for record in (*log.parked.values(), *log.in_levels.values())]
    delete_keys = {delete_key(one.get(props.REAL_TOPIC, ""), one.get(props.UNIQ_KEY, "")) for one in properties}
    by_key = {key: find_parked(timer, broker.parts.generations, key)[0] for key in sorted(delete_keys)}
    in_blocks = set(parked.keys.hashes().tolist())
    counts, pending = parked.counts.by_queue, broker.parts.transactions.pending
    armed = sorted(tuple(row) for _, _, refs in parked.armed._heap for row in refs[:, : ref.ENQUEUE_MS].tolist())
    return {
        "log": (store.log.end, store.log.last_store_ms, store.log.damaged, store.last_position),
        "queue ends": {key: queue.end for key, queue in store.queues.items() if queue.end},
        "done": parked.done.of(TIMER_STREAM).get(np.arange(timer.queue.end + 1)).tolist(),
        "pending": {key: int(counts[row]) for key, row in keys.items() if counts[row]},
        "armed": armed,
        "noted": (parked.notes.count, parked.notes.next_fire_ms),
        "keys": {key: [one.origin for one in found] for key, found in by_key.items()},
        "keys in blocks": {
            key: [i for i in parked.keys.find(key) if i not in parked.done] for key in sorted(in_blocks)
        },
        "E and S": (timer.indexed_to, timer.scans.walked_through_ms),
        "units": timer.log.end,
        "transactions": (pending.first, sorted(pending._gone), sorted(pending._moved.items())),
    }


class TwinHarness(BrokerHarness):
    """Compares the two ways to start at each start."""

    snapshots_used = 0

    def start(self, **settings: Any) -> None:
        if not (self._folder / "config" / "snapshot").exists():
            super().start(**settings)
            return
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "store"
            shutil.copytree(self._folder, copy)
            (copy / "config" / "snapshot").unlink()
            chosen = {**self._settings, **settings}
            super().start(**settings)
            with BrokerHarness(copy, clock=ManualClock(self.now_ms), **chosen) as twin:
                assert recovered(self.broker) == recovered(twin.broker)
        self.snapshots_used += 1
