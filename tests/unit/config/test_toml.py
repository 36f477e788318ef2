"""TOML files and the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wheelmq.broker.schema import BROKER
from wheelmq.broker.settings import FlushMode
from wheelmq.config import sources, toml
from wheelmq.config.errors import ConfigError
from wheelmq.config.schema import Given
from wheelmq.nameserver.settings import NAME_SERVER

BOTH = (BROKER, NAME_SERVER)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "wheelmq.toml"


def read(file: Path | None, schema: Any = BROKER) -> dict[str, Any]:
    return {field: given.value for field, given in sources.read(file, schema, lambda: BOTH).given.items()}


def read_problems(file: Path | None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        sources.read(file, BROKER, lambda: BOTH)
    return str(caught.value).splitlines()


def test_one_file_serves_the_broker_and_the_name_server(file: Path) -> None:
    file.write_text(
        '[broker]\nname = "b"\nnamesrv = ["h:1", "h:2"]\n[flush]\nmode = "SYNC_FLUSH"\n'
        "[timer]\nprecision_ms = 500\nenable = false\n[nameserver]\nlisten_port = 7\n"
    )
    assert read(file) == {
        "broker_name": "b",
        "namesrv": ("h:1", "h:2"),
        "flush_mode": FlushMode.SYNC,
        "timer_precision_ms": 500,
        "timer_wheel_enable": False,
    }
    assert read(file, NAME_SERVER) == {"listen_port": 7}


def test_the_environment_overrides_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("[timer]\nprecision_ms = 500\nlead_ms = 1\n")
    monkeypatch.setenv("WHEELMQ_TIMER__PRECISION_MS", "100")
    monkeypatch.setenv("wheelmq_broker__namesrv", "h:1; h:2")
    monkeypatch.setenv("WHEELMQ_KERNELS", "plain")  # without a double underscore it is no setting
    found = sources.read(file, BROKER, lambda: BOTH).given
    assert found["timer_precision_ms"] == Given(100, "the environment's WHEELMQ_TIMER__PRECISION_MS")
    assert found["timer_lead_ms"].where == f"{file}, [timer] lead_ms"
    settings = BROKER.build(found | {"store_path": Given("s", "")})
    assert settings.broker.namesrv == ("h:1", "h:2") and settings.timer.precision_ms == 100


def test_the_environment_overrides_apaches_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("timerPrecisionMs=500\nbrokerName=b\n")
    monkeypatch.setenv("WHEELMQ_TIMER__PRECISION_MS", "100")
    assert read(file) == {"timer_precision_ms": 100, "broker_name": "b"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[timer]\nprecision_ms = 1.5\n", "[timer] precision_ms: found 1.5; allowed: 100, 200, 500, 1000"),
        (
            "[broker]\nlisten_port = 70000\n",
            "[broker] listen_port: found 70000; allowed: a whole number from 0 to 65535",
        ),
        ('[flush]\nmode = "NONE"\n', "[flush] mode: found 'NONE'; allowed: ASYNC_FLUSH, SYNC_FLUSH"),
        ('[timer]\nenable = "perhaps"\n', "[timer] enable: found 'perhaps'; allowed: true, false"),
        ("[broker]\nnamesrv = 3\n", "[broker] namesrv: found 3; allowed: a list of texts"),
        ('[broker]\nname = ""\n', "[broker] name: found ''; allowed: a text of 1 to 127 characters"),
        (
            "[timer]\nprecison_ms = 1\n",
            "[timer] precison_ms: there is no such key (did you mean precision_ms?); allowed: ",
        ),
        ("[tmer]\n", "[tmer]: there is no such table (did you mean timer?); allowed: broker, "),
        ("timer = 3\n", "timer: found 3; allowed: a table"),
    ],
)
def test_a_problem_names_the_file_the_key_and_allowed_values(file: Path, text: str, told: str) -> None:
    file.write_text(text)
    [line] = read_problems(file)
    assert line.startswith(f"{file}, {told}")


def test_an_unreadable_file_is_rejected(file: Path) -> None:
    file.write_bytes(b"[timer\n")
    assert read_problems(file)[0].startswith(f"{file} is no TOML: ")
    file.write_bytes(b'a = "\xe4"\n')
    assert read_problems(file) == [f"{file}: byte 5 is no UTF-8, the encoding of TOML"]
    assert read_problems(file.parent / "none.toml") == [
        f"{file.parent / 'none.toml'} cannot be read: No such file or directory"
    ]


def test_an_invalid_environment_variable_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHEELMQ_TIMER__SLOT", "1")
    monkeypatch.setenv("WHEELMQ_TIMER__LEAD_MS", "soon")
    assert sorted(read_problems(None)) == [
        "the environment's WHEELMQ_TIMER__LEAD_MS: found 'soon'; allowed: a whole number from 1 to 2147483647",
        "the environment's WHEELMQ_TIMER__SLOT is no setting (did you mean WHEELMQ_TIMER__SLOTS?)",
    ]


def test_the_json_schema_has_bounds_defaults_and_enum_values() -> None:
    found = toml.json_schema(BOTH)["$defs"]
    assert found["broker"]["properties"]["listen_port"] == {
        "default": 10911,
        "description": "0 picks a free one.",
        "maximum": 65535,
        "minimum": 0,
        "title": "Listen Port",
        "type": "integer",
    }
    assert found["broker"]["additionalProperties"] is False
    assert found["FlushMode"]["enum"] == ["ASYNC_FLUSH", "SYNC_FLUSH"]


def test_the_error_of_an_invalid_value_names_its_source() -> None:
    given = {"store_path": Given("s", ""), "timer_precision_ms": Given(70, "f.toml, [timer] precision_ms")}
    with pytest.raises(
        ConfigError, match=r"^f.toml, \[timer\] precision_ms: timer_precision_ms is 70: it must be one of"
    ):
        BROKER.build(given)
