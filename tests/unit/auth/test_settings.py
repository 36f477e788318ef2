"""The settings of users and access lists: their bounds, and the secrets in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from wheelmq.auth.exposure import exposure_problem, metrics_problem
from wheelmq.auth.settings import AuthSettings
from wheelmq.broker.schema import BROKER
from wheelmq.cli import main
from wheelmq.config import apache, sources
from wheelmq.config.changes import Configuration, Origin
from wheelmq.config.errors import ConfigError
from wheelmq.config.schema import Given
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk

SECRET = "a secret of the settings"
USER = f'{{"username":"root","password":"{SECRET}"}}'
INNER = f'{{"accessKey":"inner","secretKey":"{SECRET}"}}'


def build(**given: Any) -> Any:
    values = {name: Given(value, f"line of {name}") for name, value in {"store_path": "/store", **given}.items()}
    return BROKER.build(values)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"authorization_enabled": True}, "authorization_enabled needs authentication_enabled"),
        ({"authentication_whitelist": "105;x"}, "write request codes"),
        ({"authentication_whitelist": "77777"}, "write request codes"),
        ({"authentication_whitelist": "3001"}, "AUTH_CREATE_USER"),
        ({"authorization_whitelist": "25"}, "UPDATE_BROKER_CONFIG"),
        ({"authorization_whitelist": "9100"}, "WMQ_PIPELINE_OPEN"),
        ({"authorization_whitelist": "9120"}, "WMQ_REPLICATION_STATE"),
        ({"authentication_whitelist": "9124"}, "WMQ_CHECK_BLOCKS"),
        ({"authentication_whitelist": "9125"}, "WMQ_READ_BLOCKS"),
        ({"init_authentication_user": SECRET}, '{"username":"NAME","password":"SECRET"}'),
        ({"init_authentication_user": f'{{"username":"","password":"{SECRET}"}}'}, "write"),
        ({"init_authentication_user": '{"username":"a b","password":"123456"}'}, "no name"),
        ({"inner_client_authentication_credentials": USER}, '{"accessKey":"NAME","secretKey":"SECRET"}'),
    ],
)
def test_a_wrong_setting_is_rejected_without_its_secret(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as rejected:
        build(**given)
    assert why in str(rejected.value) and SECRET not in str(rejected.value)


def test_the_settings_of_an_apache_broker_are_taken() -> None:
    text = f"""
authenticationEnabled=true
authenticationProvider=org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider
authenticationMetadataProvider=org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider
initAuthenticationUser={USER}
innerClientAuthenticationCredentials={INNER}
authorizationEnabled=true
authorizationWhitelist=105,206
"""
    reading = apache.read(text.encode(), "broker.conf", BROKER)
    settings = build(**{name: one.value for name, one in reading.given.items()}).auth
    assert settings.authentication_enabled and settings.authorization_enabled
    assert settings.init_access_key.secret == settings.inner_access_key.secret == SECRET
    assert settings.codes_without_rights == {105, 206}
    assert not any(SECRET in note for note in reading.notes)
    assert any("authenticationMetadataProvider" in note and "users.json" in note for note in reading.notes)


def test_acl_1_0_is_not_migrated_and_the_start_says_so() -> None:
    with pytest.raises(ConfigError, match=r"plain_acl\.yml.*wheelmq users add"):
        apache.read(b"migrateAuthFromV1Enabled=true", "broker.conf", BROKER)


@pytest.mark.parametrize(
    "name",
    [
        "initAuthenticationUser",
        "init_authentication_user",
        "auth.init_user",
        "innerClientAuthenticationCredentials",
        "inner_client_authentication_credentials",
    ],
)
def test_a_secret_is_not_taken_from_a_command_line(name: str) -> None:
    with pytest.raises(ConfigError, match="other users of this machine can read a command line") as rejected:
        sources.read_pairs({name: USER}, BROKER)
    assert SECRET not in str(rejected.value)


def test_no_text_of_the_settings_has_a_secret(tmp_path: Path) -> None:
    settings = build(init_authentication_user=USER, inner_client_authentication_credentials=INNER)
    configuration = Configuration(
        BROKER, settings, Origin(), disk=SimulatedDisk(), clock=ManualClock(), changed=lambda fields: None
    )
    assert b"authenticationEnabled=false" in configuration.text() and SECRET.encode() not in configuration.text()
    assert SECRET not in repr(settings)
    file = tmp_path / "broker.conf"
    file.write_text(f"brokerIP1=127.0.0.1\ninitAuthenticationUser={USER}\n")
    result = CliRunner().invoke(main, ["config", "check", str(file)])
    assert result.exit_code == 0 and "init_authentication_user = ..." in result.output and SECRET not in result.output


class TestExposure:
    @pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
    def test_a_server_of_this_machine_needs_no_users(self, host: str) -> None:
        assert exposure_problem("the broker", host, AuthSettings(), has_users=False) is None
        assert metrics_problem(host, AuthSettings()) is None

    @pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "10.0.0.7", "broker.example"])
    def test_another_server_needs_users_or_a_word_of_the_operator(self, host: str) -> None:
        secured = AuthSettings(authentication_enabled=True)
        for auth, has_users in ((AuthSettings(), False), (AuthSettings(), True), (secured, False)):
            problem = exposure_problem("the broker", host, auth, has_users=has_users)
            assert problem is not None
            for remedy in ("wheelmq users add", "listen_host=127.0.0.1", "allow_unauthenticated=true"):
                assert remedy in problem
        assert exposure_problem("the broker", host, secured, has_users=True) is None
        allowed = AuthSettings(allow_unauthenticated=True)
        assert exposure_problem("the broker", host, allowed, has_users=False) is None
        assert metrics_problem(host, allowed) is None
        assert "metrics_prom_exporter_token_file" in (metrics_problem(host, secured) or "")


def test_the_key_file_is_beside_the_store_and_not_in_it() -> None:
    assert AuthSettings().key_path(Path("/home/store")) == Path("/home/store.key")
    assert AuthSettings(key_file="/secrets/key").key_path(Path("/home/store")) == Path("/secrets/key")
