"""Our readers and Apache's read the same records, units, slots and numbers from a store of Apache's."""

from __future__ import annotations

import ipaddress
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.golden.conftest import Golden
from wheelmq.formats.disk.dump import dump
from wheelmq.formats.disk.message import SYS_COMPRESSED, decode_record
from wheelmq.formats.disk.message_id import offset_message_id, parse_offset_message_id

Row = dict[str, Any]


def read(folder: Path) -> Iterator[tuple[Path, Row]]:
    """Yield the path and the content of each row in the files below `folder`, which may also be one file."""
    for path in sorted(path for path in (folder.rglob("*") if folder.is_dir() else [folder]) if path.is_file()):
        for row in dump(path, memoryview(path.read_bytes())):
            assert "problem" not in row, (path, row)
            yield path, row


def without(row: Row, *names: str) -> Row:
    return {name: value for name, value in row.items() if name not in names}


def host_text(text: str) -> str:
    """Convert Apache's address, hex and port, to the form of our listing."""
    address, port = text.split()
    if len(address) == 8:
        return f"{ipaddress.IPv4Address(bytes.fromhex(address))}:{port}"
    return f"[{ipaddress.IPv6Address(bytes.fromhex(address))}]:{port}"


def test_records_match_the_dump_of_apache(golden: Golden) -> None:
    expected = golden.rows("record")
    found = [row for _, row in read(golden.store / "commitlog") if "topic" in row]
    assert len(found) == len(expected) > 70
    for ours, theirs in zip(found, expected, strict=True):
        names = ("size", "topic", "queue_id", "queue_offset", "flag", "born_ms", "store_ms", "reconsume_times")
        names += ("prepared_position", "properties")
        assert {name: ours[name] for name in names} == {name: theirs[name] for name in names}
        assert ours["at"] == theirs["position"] and ours["body_is_intact"]
        assert ours["sys_flag"] & ~SYS_COMPRESSED == theirs["sys_flag"]  # Apache's reader inflates
        assert [ours[name] for name in ("born_host", "store_host")] == [
            host_text(theirs[name]) for name in ("born_host", "store_host")
        ]


def test_bodies_and_message_ids_match_the_dump_of_apache(golden: Golden) -> None:
    inflated = set()
    for row in golden.rows("record"):
        file_bytes = 1 << 16
        path = golden.store / "commitlog" / f"{row['position'] // file_bytes * file_bytes:020d}"
        record = decode_record(path.read_bytes(), row["position"] % file_bytes)
        message = record.message
        assert record.body_crc == row["body_crc"] and record.body_is_intact
        body = message.body
        kind = message.sys_flag & 0x701
        inflated.add(kind)
        if kind in (0x1, 0x301):
            body = zlib.decompress(body)
        if kind in (0, 0x1, 0x301):
            assert (len(body), zlib.crc32(body) & 0x7FFF_FFFF) == (row["inflated_bytes"], row["inflated_crc"])
        assert offset_message_id(record.store_host, record.position) == row["message_id"]
        assert parse_offset_message_id(row["message_id"]) == (record.store_host, record.position)
    assert inflated == {0, 0x1, 0x101, 0x201, 0x301}


def test_blanks_match_the_dump_of_apache(golden: Golden) -> None:
    found = [row for _, row in read(golden.store / "commitlog") if "blank_bytes" in row]
    assert [(row["at"], row["blank_bytes"]) for row in found] == [
        (row["position"], row["size"]) for row in golden.rows("blank")
    ]


def test_queue_units_match_the_dump_of_apache(golden: Golden) -> None:
    found = [
        {"queue": "/".join(path.parts[-3:-1]), **without(row, "at")}
        for path, row in read(golden.store / "consumequeue")
    ]
    by_place = sorted(found, key=lambda row: (row["queue"], row["queue_offset"]))
    assert by_place == sorted(golden.rows("unit"), key=lambda row: (row["queue"], row["queue_offset"]))


def test_index_entries_match_the_dump_of_apache(golden: Golden) -> None:
    headers, entries = [], []
    for path, row in read(golden.store / "index"):
        (entries if "number" in row else headers).append({"file": path.name, **without(row, "at")})
    assert headers == golden.rows("index")
    assert entries == golden.rows("entry") and len(entries) > 200


def test_timer_units_and_slots_match_the_dump_of_apache(golden: Golden) -> None:
    units = [without(row, "at") | {"position": row["at"]} for _, row in read(golden.store / "timerlog")]
    assert [without(unit, "size", "reserved") for unit in units] == golden.rows("timer_unit")
    slots = [without(row, "at", "magic") for _, row in read(golden.store / "timerwheel")]
    assert slots == golden.rows("slot")


def test_checkpoints_match_the_dump_of_apache(golden: Golden) -> None:
    [(_, checkpoint)] = read(golden.store / "checkpoint")
    [expected] = golden.rows("checkpoint")
    assert {name: checkpoint[name] for name in expected} == expected
    [(_, check)] = read(golden.store / "config" / "timercheck")
    [expected] = golden.rows("timercheck")
    assert {name: check[name] for name in expected} == expected
