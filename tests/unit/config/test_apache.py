"""Apache's broker.conf and namesrv.conf, and the treatment of each kind of key."""

from __future__ import annotations

from typing import Any

import pytest

from wheelmq.broker.schema import BROKER
from wheelmq.config import apache
from wheelmq.config.apache import Reading
from wheelmq.config.errors import ConfigError
from wheelmq.config.keys import SECRETS, ApacheKey, Kind, Treatment
from wheelmq.config.schema import Schema
from wheelmq.nameserver.settings import NAME_SERVER

SCHEMAS = {"broker": BROKER, "nameserver": NAME_SERVER}
ROWS = [(part, key) for part, schema in SCHEMAS.items() for key in schema.keys.values()]
ANOTHER = {Kind.INT: "17", Kind.LONG: "17", Kind.DOUBLE: "0.5", Kind.TEXT: "another"}


def read(text: str, schema: Schema[Any] = BROKER) -> Reading:
    return apache.read(text.encode("latin-1"), "broker.conf", schema)


def values(text: str, schema: Schema[Any] = BROKER) -> dict[str, Any]:
    return {field: given.value for field, given in read(text, schema).given.items()}


def other_value(key: ApacheKey) -> str:
    if key.kind is Kind.BOOLEAN:
        return "false" if key.default == "true" else "true"
    return ANOTHER[key.kind]


@pytest.mark.parametrize(("part", "key"), ROWS, ids=[f"{part}-{key.name}" for part, key in ROWS])
def test_every_key_is_treated_as_its_row_says(part: str, key: ApacheKey) -> None:
    schema = SCHEMAS[part]
    if not key.default.startswith("<"):
        kept = read(f"{key.name}={key.default}\n", schema)
        assert not any(note.startswith(f"broker.conf, line 1: {key.name}") for note in kept.notes)
    if key.treatment is Treatment.REFUSED:
        with pytest.raises(ConfigError, match=f"broker.conf, line 1: {key.name}: .* is refused: "):
            read(f"{key.name}={other_value(key)}\n", schema)
        return
    reading = read(f"{key.name}={other_value(key)}\n", schema)
    if key.treatment is Treatment.HONOURED:
        assert key.ours in schema.fields
        assert reading.given[key.ours].where == f"broker.conf, line 1: {key.name}"
    else:
        shown = "..." if key.name in SECRETS else other_value(key)
        assert f"broker.conf, line 1: {key.name}={shown} has no effect: {key.why}" in reading.notes
        assert key.ours not in reading.given


def test_the_file_that_apache_ships_is_read() -> None:
    reading = read(
        "brokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = 0\ndeleteWhen = 04\n"
        "fileReservedTime = 48\nbrokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n"
    )
    assert {field: given.value for field, given in reading.given.items()} == {
        "cluster": "DefaultCluster",
        "broker_name": "broker-a",
        "broker_id": 0,
        "delete_when": "04",
        "file_reserved_time": "48",
        "broker_role": "ASYNC_MASTER",
        "flush_mode": "ASYNC_FLUSH",
    }
    [note] = reading.notes
    assert "gives no brokerIP1" in note


def test_a_note_suggests_the_nearest_name_for_an_unknown_key() -> None:
    reading = read("brokrName=b\nstorePathConsumeQueue=/x\nbrokerIP1=127.0.0.1\nbindAddress=127.0.0.1\n")
    assert reading.notes == [
        "broker.conf, line 1: brokrName is no key of Apache RocketMQ 5.3.3 (did you mean brokerName?): it is ignored",
        "broker.conf, line 2: storePathConsumeQueue is no key of Apache RocketMQ 5.3.3: it is ignored",
    ]


def test_a_note_names_a_byte_order_mark() -> None:
    reading = apache.read(b"\xef\xbb\xbfbrokerName=b\nbrokerIP1=127.0.0.1\n", "f", BROKER)
    assert any("byte order mark: remove it" in note for note in reading.notes)


def test_the_later_of_two_lines_with_one_key_takes_effect() -> None:
    reading = read("brokerName=a\nbrokerName=b\n")
    assert reading.given["broker_name"].value == "b"
    assert "broker.conf, line 1: brokerName is given again in line 2, which counts" in reading.notes


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("listenPort=ten", "found 'ten'; allowed: a whole number of 32 bits"),
        ("listenPort=", "found ''; allowed"),
        ("listenPort=1_0", "found '1_0'"),
        ("listenPort=2147483648", "a whole number of 32 bits"),
        ("shortPollingTimeMills=9223372036854775808", "a whole number of 64 bits"),
        ("autoCreateTopicEnable=yes", "found 'yes'; allowed: true, false"),
        ("logicalDiskSpaceCleanForciblyThreshold=1,5", "found '1,5'; allowed: a number"),
        ("sendMessageThreadPoolNums=x", "found 'x'"),
    ],
)
def test_a_value_that_apache_silently_ignores_is_rejected(line: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"brokerName=b\n{line}\n")
    assert str(caught.value).startswith(f"broker.conf, line 2: {line.partition('=')[0]}: ") and told in str(
        caught.value
    )


def test_one_error_lists_all_problems() -> None:
    with pytest.raises(ConfigError) as caught:
        read("aclEnable=true\nlistenPort=x\nduplicationEnable=true\n")
    assert [line.split(":")[1].strip() for line in str(caught.value).splitlines()] == [
        "aclEnable",
        "listenPort",
        "duplicationEnable",
    ]


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("mappedFileSizeConsumeQueue=101", "queue_file_bytes", 120),
        ("brokerId=3", "broker_id", 0),
        ("registerNameServerPeriod=1", "register_period_ms", 10_000),
        ("registerNameServerPeriod=99999", "register_period_ms", 60_000),
        ("diskMaxUsedSpaceRatio=99", "disk_max_used_space_ratio", 95),
        ("deleteWhen=4;16", "delete_when", "04;16"),
        ("longPollingEnable=TRUE", "long_polling", "true"),
        ("listenPort=+7 ", "listen_port", "7"),
    ],
)
def test_values_are_adjusted_as_apache_adjusts_them(line: str, field: str, value: object) -> None:
    assert values(line)[field] == value


@pytest.mark.parametrize(
    ("lines", "is_taken"),
    [
        ("storePathRootDir=/a\nstorePathCommitLog=/a/commitlog\n", True),
        ("storePathRootDir=/a\nstorePathCommitLog=/b/commitlog\n", False),
        ("storePathCommitLog=/a/commitlog\n", False),
    ],
)
def test_only_the_default_commit_log_path_is_accepted(lines: str, is_taken: bool) -> None:
    if is_taken:
        assert values(lines) == {"store_path": "/a"}
    else:
        with pytest.raises(ConfigError, match=r"storePathCommitLog: .* move the folder there, or link it"):
            read(lines)


@pytest.mark.parametrize(
    ("lines", "host"),
    [
        ("brokerIP1=10.0.0.7\n", "0.0.0.0"),
        ("brokerIP1=10.0.0.7\nbindAddress=10.0.0.7\n", "10.0.0.7"),
        ("brokerIP1=127.0.0.1\n", None),
        ("", None),
    ],
)
def test_an_advertised_address_sets_the_listen_address(lines: str, host: str | None) -> None:
    assert values(lines).get("listen_host") == host


def test_a_note_names_the_address_of_a_file_without_one() -> None:
    assert any("gives no brokerIP1: clients get 127.0.0.1" in note for note in read("brokerName=a\n").notes)
    assert not any("brokerIP1" in note for note in read("bindAddress=0.0.0.0\n").notes)


def test_notes_hide_secrets() -> None:
    reading = read("socksProxyConfig=hunter2\nmetricsGrpcExporterHeader=Authorization:hunter2\n")
    assert not any("hunter2" in note for note in reading.notes)
    assert any("socksProxyConfig=... has no effect" in note for note in reading.notes)
