"""Warnings at the start of a broker: it cannot store messages on its disk, or clients cannot reach its address."""

from __future__ import annotations

from typing import Final

from wheelmq.broker.settings import BrokerSettings
from wheelmq.formats.disk.message import BLANK_BYTES, TOPIC_BYTES_MAX, record_bytes
from wheelmq.formats.disk.properties import PROPERTIES_BYTES_MAX
from wheelmq.formats.disk.timer import TIMER_SLOT
from wheelmq.formats.hosts import is_loopback
from wheelmq.store.index import ROOM_BYTES
from wheelmq.store.preallocator import FIRST_AHEAD_BYTES
from wheelmq.store.store import Store, log_room_bytes

MIB: Final = 1 << 20
REMEDY: Final = "free space there, or choose another --home"


def start_warnings(settings: BrokerSettings, store: Store) -> list[str]:
    total, free = store.disk.space(store.paths.root)
    used = round(total * store.disk.used_share(store.paths.root))
    files = store.log.files
    disk = disk_warning(settings, total=total, used=used, free=free, is_new=files.start == files.end)
    found = (disk, address_warning(settings))
    return [text for text in found if text is not None]


def disk_warning(settings: BrokerSettings, *, total: int, used: int, free: int, is_new: bool) -> str | None:
    """Return why the store cannot take messages, with the remedy, or None. `is_new`: its files do not exist yet."""
    problem = disk_problem(settings, total=total, used=used, free=free, is_new=is_new)
    return None if problem is None else f"{problem}; {REMEDY}"


def disk_problem(settings: BrokerSettings, *, total: int, used: int, free: int, is_new: bool) -> str | None:
    """Return why the store cannot take messages, or None. `is_new`: its files do not exist yet."""
    ratio, store = settings.expiry.refuse_percent, settings.store.path
    if 100 * used > ratio * total:
        return (
            f"the disk of {store} is {100 * used / total:.0f} % full: the broker rejects messages above {ratio} % "
            "(disk_space_warning_level_ratio)"
        )
    if not is_new:
        needed = log_room_bytes(settings.store)
        if free >= needed:
            return None
        return (
            f"the disk of {store} has {_mib(free)} free, and the log takes {_mib(needed)} at a time: the broker will "
            "reject messages"
        )
    needed = first_bytes(settings)
    if free < needed:
        return (
            f"the disk of {store} has {_mib(free)} free, and a new store takes {_mib(needed)}: the broker will reject "
            "messages"
        )
    if 100 * (used + needed) > ratio * total:
        return (
            f"the disk of {store} has {_mib(free)} free, and a new store takes {_mib(needed)}: the disk is then more "
            f"than {ratio} % full (disk_space_warning_level_ratio), and the broker rejects messages"
        )
    return None


def first_bytes(settings: BrokerSettings) -> int:
    """Return the bytes that a new store takes with its first messages."""
    store, timer, size = settings.store, settings.timer, settings.index.size
    room_bytes = log_room_bytes(store)
    ahead_bytes = 0 if store.log_files_warm else FIRST_AHEAD_BYTES
    wheel_bytes = 2 * timer.slots * TIMER_SLOT.size if timer.enable else 0
    index_bytes = size.units_at + ROOM_BYTES if settings.index.enable else 0
    return room_bytes * (1 + store.log_files_ahead) + ahead_bytes + wheel_bytes + index_bytes


def body_size_warning(settings: BrokerSettings) -> str | None:
    """Return why a body of `body_bytes_max` bytes may not fit into a log file; None when it always fits."""
    body_bytes_max, log_file_bytes = settings.requests.body_bytes_max, settings.store.log_file_bytes
    needed = record_bytes(TOPIC_BYTES_MAX, body_bytes_max, PROPERTIES_BYTES_MAX) + BLANK_BYTES
    if needed <= log_file_bytes:
        return None
    return (
        f"body_bytes_max is {body_bytes_max}, and a log file has {log_file_bytes} bytes (log_file_bytes). A body of "
        f"that length with topic and properties needs up to {needed} bytes. The broker rejects messages that are "
        "longer than a log file. Set a smaller body_bytes_max, or create a new store with a larger log_file_bytes"
    )


def address_warning(settings: BrokerSettings) -> str | None:
    """Return why clients on other machines cannot reach a broker that listens for them; None if there is no reason."""
    node = settings.broker
    if is_loopback(node.listen_host) or not is_loopback(node.host):
        return None
    return (
        f"the broker listens on {node.listen_host}, and routes have {node.host} as its address: clients "
        "on other machines cannot reach it. Name an address of this machine with --advertise"
    )


def _mib(count: int) -> str:
    return f"{count / MIB:,.0f} MiB" if count < 1024 * MIB else f"{count / (1024 * MIB):.1f} GiB"
