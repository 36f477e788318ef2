"""Warnings at the start of a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.start_warnings import address_warning, disk_warning, first_bytes, start_warnings
from wheelmq.testing.harness import BrokerHarness

GIB = 1 << 30
NEW_MIB = 85
REMEDY = "free space there, or choose another --home"


def settings(**chosen: object) -> BrokerSettings:
    return BrokerSettings.of(store_path=Path("/store"), **chosen)


def warning(total: int, used: int, *, is_new: bool = True, **chosen: object) -> str | None:
    return disk_warning(settings(**chosen), total=total, used=used, free=total - used, is_new=is_new)


def test_a_disk_with_room_gives_no_warning() -> None:
    assert warning(100 * GIB, 10 * GIB) is None
    assert warning(100 * GIB, 89 * GIB, is_new=False) is None


def test_a_disk_too_small_for_a_new_store_causes_a_warning() -> None:
    text = warning(GIB, GIB - (50 << 20), disk_space_warning_level_ratio=100)
    assert text is not None
    assert f"/store has 50 MiB free, and a new store takes {NEW_MIB} MiB: the broker will reject messages" in text
    assert text.endswith(REMEDY)
    assert warning(GIB, GIB - (50 << 20), is_new=False, disk_space_warning_level_ratio=100) is None
    text = warning(GIB, GIB - (50 << 20), is_new=False, disk_space_warning_level_ratio=100, warm_maped_file_enable=True)
    assert text is not None and "50 MiB free, and the log takes 1.0 GiB at a time: the broker will reject" in text


def test_a_disk_full_after_the_first_messages_causes_a_warning() -> None:
    text = warning(GIB, GIB * 85 // 100)
    assert text is not None
    assert f"154 MiB free, and a new store takes {NEW_MIB} MiB" in text and "more than 90 % full" in text
    assert text.endswith(REMEDY)
    assert warning(GIB, GIB * 75 // 100) is None


@pytest.mark.parametrize("is_new", [True, False])
def test_a_disk_above_the_limit_causes_a_warning(is_new: bool) -> None:
    text = warning(100 * GIB, 91 * GIB, is_new=is_new)
    assert text is not None and "91 % full: the broker rejects messages above 90 % (disk_space_warning_level" in text


def test_a_new_store_takes_at_most_100_mb() -> None:
    assert first_bytes(settings()) < 100 * 1000 * 1000
    assert first_bytes(settings(timer_wheel_enable=False, message_index_enable=False, log_files_ahead=0)) == 20 << 20
    assert (
        first_bytes(settings(timer_wheel_enable=False, message_index_enable=False, warm_maped_file_enable=True))
        == 3 * GIB
    )


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
