"""Warnings at the start of a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.start_warnings import address_warning, disk_warning, first_bytes, start_warnings
from wheelmq.testing.harness import BrokerHarness

GIB = 1 << 30
REMEDY = "free space there, or choose another --home, or start a new store with `--set log_file_bytes=67108864`"


def settings(**chosen: object) -> BrokerSettings:
    return BrokerSettings.of(store_path=Path("/store"), **chosen)


def warning(total: int, used: int, *, is_new: bool = True, **chosen: object) -> str | None:
    return disk_warning(settings(**chosen), total=total, used=used, free=total - used, is_new=is_new)


def test_a_disk_with_room_gives_no_warning() -> None:
    assert warning(100 * GIB, 10 * GIB) is None
    assert warning(100 * GIB, 89 * GIB, is_new=False) is None


def test_a_disk_that_cannot_hold_one_log_file_causes_a_warning() -> None:
    text = warning(GIB, GIB * 7 // 10)
    assert text is not None
    assert "/store has 307 MiB free, and the first message needs a log file of 1.0 GiB (log_file_bytes)" in text
    assert text.endswith(f"{REMEDY}, at each start")
    assert warning(GIB, GIB * 7 // 10, is_new=False) is None


def test_a_disk_full_after_the_first_messages_causes_a_warning() -> None:
    text = warning(23 * GIB // 10, GIB // 10)
    assert text is not None
    assert "2.2 GiB free, and the first messages create files of 2.1 GiB" in text and "more than 90 % full" in text
    assert REMEDY in text
    assert warning(23 * GIB // 10, GIB // 10, log_file_bytes=64 << 20) is None
    small = warning(GIB // 2, 0, log_file_bytes=64 << 20, disk_space_warning_level_ratio=50)
    assert small is not None and "--set log_file_bytes" not in small


@pytest.mark.parametrize("is_new", [True, False])
def test_a_disk_above_the_limit_causes_a_warning(is_new: bool) -> None:
    text = warning(100 * GIB, 91 * GIB, is_new=is_new)
    assert text is not None and "91 % full: the broker rejects messages above 90 % (disk_space_warning_level" in text


@pytest.mark.parametrize(("free_gib", "files"), [(100, 3), (4.1, 3), (3.9, 2), (1.9, 1)])
def test_the_first_files_of_a_store_depend_on_the_free_space(free_gib: float, files: int) -> None:
    chosen = settings(message_index_enable=False, timer_log_file_bytes=1)
    assert first_bytes(chosen, int(free_gib * GIB)) == files * GIB + 1


@pytest.mark.parametrize(
    ("listen_host", "broker_ip", "warns"),
    [
        ("127.0.0.1", "127.0.0.1", False),
        ("localhost", "127.0.0.1", False),
        ("0.0.0.0", "10.0.0.7", False),
        ("0.0.0.0", "127.0.0.1", True),
        ("10.0.0.7", "127.0.0.1", True),
    ],
)
def test_an_address_that_other_machines_cannot_reach_causes_a_warning(
    listen_host: str, broker_ip: str, warns: bool
) -> None:
    text = address_warning(settings(listen_host=listen_host, broker_ip=broker_ip))
    assert (text is not None) is warns
    assert text is None or "Name an address of this machine with --advertise" in text


def test_a_broker_checks_its_own_disk(harness: BrokerHarness) -> None:
    settings, store = harness.broker.parts.settings, harness.broker.parts.store
    assert start_warnings(settings, store) == []
    settings.broker.listen_host = "0.0.0.0"
    assert len(start_warnings(settings, store)) == 1
    harness.disk.used = 0.95
    assert len(start_warnings(settings, store)) == 2
