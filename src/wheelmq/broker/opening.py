"""Open a store: recover it, and everything that follows from its log."""

from __future__ import annotations

import logging

from wheelmq.broker.engine import Engine
from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.transactions.recovered_ends import RecoveredEnds
from wheelmq.delay.blocks.search import Searches
from wheelmq.delay.opening import open_delay
from wheelmq.delay.timer.recover import SnapshotWrong, TimerRecovery
from wheelmq.formats.disk.message import Host
from wheelmq.store.index import MessageIndex
from wheelmq.store.journal import Rows
from wheelmq.store.recovery import InternedNames
from wheelmq.store.store import Store
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk
from wheelmq.system.workers import Workers

log = logging.getLogger(__name__)


def open_engine(
    settings: BrokerSettings,
    *,
    disk: Disk,
    clock: Clock,
    workers: Workers,
    has_apache_master: bool = False,
    hides_new: bool = False,
) -> tuple[Engine, RecoveredEnds]:
    """Recover the store. Returns the engine, and the ends of transactions that the log has.

    With `hides_new`, consumers do not yet see records that they had not seen before the stop.
    With `has_apache_master`, timer, levels and blocks stay as they are on disk. A snapshot that contradicts the log is
    deleted, and the whole log is read. Raises StoreLocked, OSError.
    """
    if has_apache_master:
        return _open_log(settings, disk, clock, workers)
    try:
        return _open(settings, disk, clock, workers, hides_new=hides_new)
    except SnapshotWrong as error:
        log.warning("recovery deletes the snapshot and reads the whole log: %s", error)
        return _open(settings, disk, clock, workers, hides_new=hides_new)


def _open_log(settings: BrokerSettings, disk: Disk, clock: Clock, workers: Workers) -> tuple[Engine, RecoveredEnds]:
    """Recover log and queues alone. Raises OSError."""
    store = _store_of(settings, disk, clock)
    timer, block_parts, generations = open_delay(store, settings.timer, settings.blocks)
    ends = RecoveredEnds(store.log)
    store.recover(lambda rows, names: ends.on_rows(rows))
    index = _open_index(settings, store, workers)
    searches = Searches(block_parts.blocks, workers.reading)
    return Engine(store, timer, block_parts, generations, searches, index, knows_pending=False), ends


def _store_of(settings: BrokerSettings, disk: Disk, clock: Clock) -> Store:
    host = Host(bytes(map(int, settings.broker.ip.split("."))), settings.broker.port)
    return Store(settings.store, disk, clock, host=host, levels_ms=settings.levels.levels_ms)


def _open(
    settings: BrokerSettings, disk: Disk, clock: Clock, workers: Workers, *, hides_new: bool
) -> tuple[Engine, RecoveredEnds]:
    """Recover the store. Raises SnapshotWrong: the snapshot is deleted then."""
    store = _store_of(settings, disk, clock)
    timer, block_parts, generations = open_delay(store, settings.timer, settings.blocks)
    block_parts.blocks.load()
    block_parts.blocks.recover()
    recovery, ends = TimerRecovery(timer), RecoveredEnds(store.log)

    def on_rows(rows: Rows, names: InternedNames) -> None:
        recovery.on_rows(rows, names)
        ends.on_rows(rows)

    store.recover(on_rows, recovery.resume, hides_new=hides_new)
    index = _open_index(settings, store, workers)
    recovery.finish(index)
    block_parts.intake.recover(recovery.blocks_gone)
    searches = Searches(block_parts.blocks, workers.reading)
    return Engine(store, timer, block_parts, generations, searches, index), ends


def _open_index(settings: BrokerSettings, store: Store, workers: Workers) -> MessageIndex | None:
    if not settings.index.enable:
        return None
    return MessageIndex(store, workers.background, settings.index.size)
