"""Files that a start reads, and files that `wheelmq dump` shows. The first line names the file.

Rules: invalid settings raise ConfigError, an invalid record raises RecordError, and an invalid snapshot raises
SnapshotDamaged. A settings file that is written back with changes has these changes. The readers of parts of a record
agree with the reader of the whole record. A dump shows each file of a store up to the damage, which a row reports. A
file that is cut short raises ValueError or struct.error.
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

from wheelmq.broker.schema import BROKER
from wheelmq.config import apache, properties, toml
from wheelmq.config.errors import ConfigError
from wheelmq.formats.disk import message
from wheelmq.formats.disk.dump import Row, dump
from wheelmq.formats.disk.message import RecordError
from wheelmq.formats.disk.snapshot import SNAPSHOT_MAGIC, Snapshot, SnapshotDamaged
from wheelmq.nameserver.settings import NAME_SERVER

FILES = (
    "commitlog/00000000000000000000", "consumequeue/T/0/00000000000000000000", "index/20260101000000000",
    "timerlog/00000000000000000000", "scheduledtempdata/2026010100/checkpoint", "checkpoint", "timerwheel",
    "scheduledtempdata/2026010100/queue/00000000000000000000", "config/timercheck", "config/timermark",
    "config/timerdone", "config/timermetrics", "config/snapshot",
)  # fmt: skip
TOKENS = (
    b"broker.conf\n", b"wheelmq.toml\n", b"record\n", b"snapshot\n", *(f"{file}\n".encode() for file in FILES),
    b"\\u00", b"\\\n",
    b"\r\n", b"=", b":", b"#", b"brokerName", b"listenPort", b"storePathRootDir", b"flushDiskType", b"[timer]\n",
    b"precision_ms", b"[", b"]",
    b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab", b"\xcb\xd4\x31\x94", b"\0\0\0\x14", b"\xff\xff\xff\xff", b"\0" * 20,
)  # fmt: skip
CHANGES = {"brokerName": "b=a \\ \u20ac", "new": " x"}


def check(data: bytes) -> None:
    """Read a file with these bytes and check the rules."""
    name, _, raw = data.partition(b"\n")
    match name:
        case b"broker.conf":
            _check_properties(raw)
        case b"wheelmq.toml":
            _check_toml(raw)
        case b"record":
            _check_record(raw)
        case b"snapshot":
            _check_snapshot(raw)
        case _ if name.decode("latin-1") in FILES:
            _check_dump(Path("store") / name.decode(), raw)


def _check_dump(path: Path, raw: bytes) -> None:
    rows: list[Row] = []
    with contextlib.suppress(struct.error, ValueError):
        rows += dump(path, memoryview(raw))
    assert not any("problem" in row for row in rows[:-1])


def _check_properties(raw: bytes) -> None:
    try:
        found = {one.name: one.value for one in properties.parse(raw)}
        apache.read(raw, "broker.conf", BROKER)
    except ConfigError:
        return
    written = properties.write(found).encode("latin-1")
    assert {one.name: one.value for one in properties.parse(written)} == found
    changed = properties.parse(properties.with_changes(raw, CHANGES))
    assert {one.name: one.value for one in changed} == {**found, **CHANGES}


def _check_toml(raw: bytes) -> None:
    try:
        toml.check(toml.parse(raw, "wheelmq.toml"), "wheelmq.toml", BROKER, (BROKER, NAME_SERVER))
    except ConfigError as error:
        assert str(error)


def _check_record(raw: bytes) -> None:
    try:
        record = message.decode_record(raw)
    except RecordError:
        return
    assert message.has_form(raw, 0, record.size, record.position)
    stored = message.stored_properties(raw)
    for name, value in record.message.properties.items():
        assert stored.get(name) == value
    message.is_written_out(raw, 0, record)


def _check_snapshot(raw: bytes) -> None:
    try:
        found = Snapshot.decode(raw)
    except SnapshotDamaged:
        return
    if int.from_bytes(raw[:4], "big") == SNAPSHOT_MAGIC:  # an older format is encoded in the present format
        assert found.encode() == raw
