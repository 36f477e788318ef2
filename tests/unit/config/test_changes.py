"""Settings of a running broker are read and changed, in memory and in their file."""

from __future__ import annotations

import tomllib
from copy import deepcopy
from pathlib import Path

import pytest

from wheelmq.broker.schema import BROKER
from wheelmq.broker.settings import BrokerSettings
from wheelmq.config import properties, sources
from wheelmq.config.changes import ChangeRejected, Configuration, Origin
from wheelmq.config.schema import Given
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk


class Running:
    """A running configuration whose file contains `text`."""

    def __init__(self, file: Path | None, text: str = "", **fields: object) -> None:
        self.disk, self.clock = SimulatedDisk(), ManualClock()
        self.file = file
        if file is not None:
            self.disk.replace(file, text.encode())
        self.settings = BrokerSettings.of(store_path=Path("s"), **fields)
        self.told: list[frozenset[str]] = []
        given = {"long_polling": Given(True, "--set long_polling")}
        self.configuration = Configuration(
            BROKER, self.settings, Origin(file, given), disk=self.disk, clock=self.clock, changed=self.told.append
        )

    def update(self, text: str) -> None:
        self.configuration.update(text.encode())

    @property
    def stored(self) -> str:
        assert self.file is not None
        return (self.disk.read(self.file) or b"").decode()

    def expect_rejection(self, text: str) -> ChangeRejected:
        """Expect that an update is rejected and changes nothing. Returns the rejection."""
        settings, version = deepcopy(self.settings), self.configuration.version
        stored = self.stored if self.file is not None else None
        with pytest.raises(ChangeRejected) as caught:
            self.update(text)
        assert self.settings == settings and self.configuration.version == version and self.told == []
        assert stored is None or self.stored == stored
        return caught.value


@pytest.fixture
def conf(tmp_path: Path) -> Running:
    return Running(tmp_path / "broker.conf", "# ours\nfileReservedTime = 48\nbrokerName=broker-a\n")


def test_a_change_applies_at_once_and_is_stored_in_the_file(conf: Running, tmp_path: Path) -> None:
    conf.clock.advance(5)
    before = conf.configuration.version
    conf.update("fileReservedTime=24\nlongPollingEnable=false\n")
    assert conf.settings.expiry.reserved_hours == 24 and conf.settings.consumers.long_polling is False
    assert conf.stored == "# ours\nfileReservedTime=24\nbrokerName=broker-a\nlongPollingEnable=false\n"
    assert conf.disk.read(tmp_path / "broker.conf.bak") == b"# ours\nfileReservedTime = 48\nbrokerName=broker-a\n"
    assert conf.told == [frozenset({"file_reserved_time", "long_polling"})]
    assert conf.configuration.version.counter == before.counter + 1
    assert conf.configuration.version.timestamp == conf.clock.now_ms()


@pytest.mark.parametrize(
    ("outgoing", "verify", "shown"),
    [
        ("auto", "full", ("false", "true")),
        ("always", "chain", ("true", "true")),
        ("never", "none", ("false", "false")),
    ],
)
def test_apaches_booleans_are_shown_as_booleans(outgoing: str, verify: str, shown: tuple[str, str]) -> None:
    running = Running(None, tls_outgoing=outgoing, tls_outgoing_verify=verify)
    found = {one.name: one.value for one in properties.parse(running.configuration.text())}
    assert (found["useTLS"], found["tls.client.authServer"]) == shown
    running.update(f"useTLS={shown[0]}\ntls.client.authServer={shown[1]}\n")
    assert running.settings.tls.outgoing == outgoing and running.settings.tls.outgoing_verify == verify


def test_the_next_start_reads_the_changed_file(conf: Running, tmp_path: Path) -> None:
    conf.update(
        "messageDelayLevel=1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h\nflushDiskType=SYNC_FLUSH"
    )
    file = tmp_path / "again.conf"
    file.write_text(conf.stored)
    given = sources.read(file, BROKER, tuple).given
    assert BROKER.build(given | {"store_path": Given("s", "")}).flush.mode == "SYNC_FLUSH"


def test_a_toml_file_is_changed_in_place(tmp_path: Path) -> None:
    toml = Running(tmp_path / "w.toml", "[expiry]\nreserved_hours = 48 # two days\n[timer]\nprecision_ms = 500\n")
    toml.update("fileReservedTime=24\nflushDiskType=SYNC_FLUSH\nlongPollingEnable=false\n")
    assert "reserved_hours = 24 # two days\n" in toml.stored
    assert tomllib.loads(toml.stored) == {
        "expiry": {"reserved_hours": 24},
        "timer": {"precision_ms": 500},
        "flush": {"mode": "SYNC_FLUSH"},
        "consumers": {"long_polling": False},
    }


def test_an_update_with_current_values_changes_nothing(conf: Running) -> None:
    conf.update(
        "fileReservedTime=72\nbrokerName=broker-a\naclEnable=false\nsendMessageThreadPoolNums=<by processors>\n"
    )
    assert conf.told == [] and conf.configuration.version.counter == 0


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        (
            "storePathRootDir=/x",
            ResponseCode.NO_PERMISSION,
            "storePathRootDir does not change at run time: change it in ",
        ),
        ("brokerIP1=10.0.0.1", ResponseCode.NO_PERMISSION, "brokerIP1 does not change at run time"),
        ("listenPort=1", ResponseCode.NO_PERMISSION, "listenPort does not change"),
        ("namesrvAddr=h:1", ResponseCode.NO_PERMISSION, "namesrvAddr does not change"),
        ("brokerConfigPath=/x", ResponseCode.NO_PERMISSION, "brokerConfigPath has no effect: the file is the one"),
        (
            "waitTimeMillsInAckQueue=1",
            ResponseCode.NO_PERMISSION,
            "waitTimeMillsInAckQueue has no effect: belongs to",
        ),
        (
            "aclEnable=true",
            ResponseCode.NO_PERMISSION,
            "aclEnable is refused: the access lists of RocketMQ 4 are not read",
        ),
        ("fileReservdTime=1", ResponseCode.INVALID_PARAMETER, "did you mean fileReservedTime?"),
        (
            "fileReservedTime=soon",
            ResponseCode.INVALID_PARAMETER,
            "fileReservedTime: found 'soon'; allowed: a whole number",
        ),
        (
            "fileReservedTime=-1",
            ResponseCode.INVALID_PARAMETER,
            "found '-1'; allowed: a whole number from 0 to",
        ),
        ("deleteWhen=25", ResponseCode.INVALID_PARAMETER, "write hours from 00 to 23"),
        ("a=\\u12", ResponseCode.INVALID_PARAMETER, "line 1: \\u12: write"),
    ],
)
def test_an_update_with_one_invalid_line_changes_nothing(
    conf: Running, text: str, code: ResponseCode, told: str
) -> None:
    rejection = conf.expect_rejection(f"longPollingEnable=false\n{text}\n" if "\\u" not in text else text)
    assert rejection.code == code and told in rejection.remark


def test_paths_and_addresses_are_not_mutable() -> None:
    assert not [
        name for name in BROKER.mutable if any(part in name for part in ("path", "host", "_ip", "port", "namesrv"))
    ]


def test_an_update_changes_nothing_if_the_file_is_not_writable(conf: Running) -> None:
    conf.disk.replace = _raise_disk_full  # type: ignore[method-assign]
    rejection = conf.expect_rejection("longPollingEnable=false")
    assert rejection.code == ResponseCode.SYSTEM_ERROR and "could not be changed: " in rejection.remark


def _raise_disk_full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_an_update_changes_nothing_if_the_toml_file_is_too_complex(tmp_path: Path) -> None:
    toml = Running(tmp_path / "w.toml", "expiry = {reserved_hours = 48}\n")
    assert "change it by hand" in toml.expect_rejection("fileReservedTime=24").remark


def test_a_change_without_a_file_lasts_until_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    running = Running(None)
    running.update("fileReservedTime=24")
    assert running.settings.expiry.reserved_hours == 24
    assert "file_reserved_time: changed until the stop, because no file was given with -c" in caplog.text


def test_a_warning_names_an_option_that_overrides_the_file(conf: Running, caplog: pytest.LogCaptureFixture) -> None:
    conf.update("longPollingEnable=false")
    assert "long_polling: at the next start, the value of --set long_polling overrides" in caplog.text


def test_the_text_has_the_current_values_by_apaches_names(tmp_path: Path) -> None:
    running = Running(tmp_path / "f", broker_name="b ä\\", namesrv=("h:1", "h:2"), flush_mode="SYNC_FLUSH")
    found = {one.name: one.value for one in properties.parse(running.configuration.text())}
    assert found["brokerName"] == "b ä\\" and found["namesrvAddr"] == "h:1;h:2"
    assert found["flushDiskType"] == "SYNC_FLUSH" and found["longPollingEnable"] == "true"
    assert found["aclEnable"] == "false" and found["brokerRole"] == "ASYNC_MASTER"
    assert "sendMessageThreadPoolNums" not in found
    assert list(found) == sorted(found)
