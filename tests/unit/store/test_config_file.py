"""The JSON files of the config folder."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import Body, BodyError, TopicConfig, TopicConfigTable
from wheelmq.store import config_file
from wheelmq.store.config_file import PART
from wheelmq.system.disk import Disk
from wheelmq.testing.disk import SimulatedDisk


class Table(Body):
    offset_table: dict[str, dict[int, int]] = {}


def table(offset: int) -> Table:
    return Table(offset_table={"T@g": {0: offset}})


@pytest.fixture(params=[Disk, SimulatedDisk], ids=["real", "simulated"])
def any_disk(request: pytest.FixtureRequest) -> Disk:
    made: Disk = request.param()
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "consumerOffset.json"


def backup(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def test_a_missing_file_gives_none(any_disk: Disk, path: Path) -> None:
    assert config_file.load(any_disk, path, Table) is None


def test_a_saved_table_is_loaded(any_disk: Disk, path: Path) -> None:
    config_file.save(any_disk, path, table(7))
    assert config_file.load(any_disk, path, Table) == table(7)
    assert not backup(path).exists()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_previous_file_is_kept_as_a_backup(any_disk: Disk, path: Path) -> None:
    for offset in (1, 2, 3):
        config_file.save(any_disk, path, table(offset))
    assert config_file.load(any_disk, path, Table) == table(3)
    assert config_file.load(any_disk, backup(path), Table) == table(2)


def test_a_file_of_apache_is_loaded(any_disk: Disk, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{\n\t"offsetTable":{"T@g":{0:7,1:3\n\t\t}\n\t},\n\t"unheardOf":{}\n}')
    assert config_file.load(any_disk, path, Table) == Table(offset_table={"T@g": {0: 7, 1: 3}})


@pytest.mark.parametrize("torn", [b"", b" \n", b"{", b'{"offsetTable":{"T@g":{"0":', b"\0" * 64, b"\xff\xfe"])
def test_the_backup_replaces_a_torn_file(any_disk: Disk, path: Path, torn: bytes) -> None:
    config_file.save(any_disk, path, table(1))
    config_file.save(any_disk, path, table(2))
    path.write_bytes(torn)
    assert config_file.load(any_disk, path, Table) == table(1)


def test_the_backup_replaces_a_missing_file(any_disk: Disk, path: Path) -> None:
    config_file.save(any_disk, path, table(1))
    config_file.save(any_disk, path, table(2))
    path.unlink()
    assert config_file.load(any_disk, path, Table) == table(1)


@pytest.mark.parametrize("other", [b"{", b"", None], ids=["torn", "empty", "gone"])
def test_an_unreadable_file_without_a_readable_backup_is_rejected(
    any_disk: Disk, path: Path, other: bytes | None
) -> None:
    config_file.save(any_disk, path, table(1))
    path.write_bytes(b"{")
    if other is not None:
        backup(path).write_bytes(other)
    with pytest.raises(BodyError, match="repair the file or remove it"):
        config_file.load(any_disk, path, Table)


def test_an_empty_file_is_logged(any_disk: Disk, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    path.write_bytes(b"")
    assert config_file.load(any_disk, path, Table) is None
    assert f"{path} is empty" in caplog.text


@pytest.mark.parametrize("count", [0, 1, PART, PART + 1, 3 * PART])
def test_a_table_encoded_in_parts_equals_the_whole_table(count: int) -> None:
    configs = {f'T"{i}': TopicConfig(topic_name=f"T{i}", attributes={"a": "b"} if i % 2 else {}) for i in range(count)}
    whole = TopicConfigTable(topic_config_table=configs)
    assert config_file.encode(whole) == msgspec.json.format(bodies.write(whole), indent=2)
