"""`wheelmq users` and `wheelmq acl` on the store of a stopped broker, and the access key of a command."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tests.docs.command_line import SHAPES
from wheelmq.auth.credentials_file import write_credentials
from wheelmq.cli import main
from wheelmq.cli.credentials import own_access_key
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.system.credentials import take_access_key, variables_of
from wheelmq.system.disk import Disk
from wheelmq.testing.harness import BrokerHarness

SECRET = "the secret of bob"


def run(*words: str, secret: str = "", code: int = 0) -> str:
    result: Result = CliRunner().invoke(main, list(words), input=f"{secret}\n")
    assert result.exit_code == code, result.output
    assert SECRET not in result.output
    return result.output


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store")


class TestUsers:
    def test_the_first_user_is_there_before_the_first_start(self, store: str) -> None:
        run("users", "add", "bob", "--super", "--store", store, secret=SECRET)
        assert run("users", "list", "--store", store).split() == ["bob", "Super", "enable"]
        with BrokerHarness(Path(store), authentication_enabled=True) as harness:
            command = Command(code=RequestCode.GET_BROKER_RUNTIME_INFO)
            AccessKey("bob", SECRET).sign(command)
            assert harness.ask(command).code == 0
            harness.stop()
        assert Path(f"{store}.key").stat().st_mode & 0o777 == 0o600

    def test_a_user_is_changed_and_removed(self, store: str) -> None:
        run("users", "add", "bob", "--store", store, secret="the first secret")
        run("users", "change", "bob", "--type", "Super", "--status", "disable", "--store", store)
        (user,) = json.loads(run("users", "list", "--json", "--store", store))
        assert user == {"username": "bob", "userType": "Super", "userStatus": "disable"}
        assert tuple(user) == SHAPES["`users list`"]
        run("users", "passwd", "bob", "--store", store, secret=SECRET)
        run("acl", "grant", "bob", "Topic:T", "Pub", "--store", store)
        run("users", "remove", "bob", "--store", store)
        assert run("users", "list", "--store", store) == "" == run("acl", "list", "--store", store)

    @pytest.mark.parametrize(
        ("words", "secret", "why"),
        [
            (("add", "a b"), SECRET, "is no name"),
            (("add", "bob"), "", "password can not be blank"),
            (("add", "bob"), "short", "6 to 512"),
            (("add", "eve"), SECRET, "the user eve exists"),
            (("passwd", "bob"), SECRET, "there is no user bob"),
            (("change", "bob", "--status", "enable"), "", "there is no user bob"),
            (("remove", "bob"), "", "there is no user bob"),
        ],
    )
    def test_an_error_names_the_reason(self, store: str, words: tuple[str, ...], secret: str, why: str) -> None:
        run("users", "add", "eve", "--store", store, secret=SECRET)
        assert why in run("users", *words, "--store", store, secret=secret, code=1)

    def test_a_running_broker_keeps_its_store(self, store: str) -> None:
        with BrokerHarness(Path(store), disk=None):
            pass
        lock = Disk().lock(Path(store) / "lock")
        try:
            # a lock of this process does not exclude this process, so another one tries
            import subprocess
            import sys

            command = [sys.executable, "-P", "-m", "wheelmq", "users", "list", "--store", store]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 1 and "Leave --store out" in done.stderr
        finally:
            lock.close()

    def test_a_change_needs_something_to_change(self, store: str) -> None:
        assert "--type, --status or both" in run("users", "change", "bob", "--store", store, code=2)


class TestAcls:
    def test_rights_are_granted_listed_and_revoked(self, store: str) -> None:
        run("users", "add", "bob", "--store", store, secret=SECRET)
        told = run("acl", "grant", "bob", "topic:Or*", "pub", "Sub", "--ip", "10.0.0.0/8", "--store", store)
        assert told == "bob: allow Pub, Sub on Topic:Or* from 10.0.0.0/8\n"
        run("acl", "grant", "bob", "*", "All", "--deny", "--default", "--store", store)
        listed = run("acl", "list", "bob", "--store", store).splitlines()
        assert listed == ["bob", "  allow Pub, Sub on Topic:Or* from 10.0.0.0/8", "  deny  All on *  (default)"]
        (found,) = json.loads(run("acl", "list", "--json", "--store", store))
        assert tuple(found) == SHAPES["`acl list`"]
        assert [policy["policyType"] for policy in found["policies"]] == ["Custom", "Default"]
        run("acl", "revoke", "bob", "Topic:Or*", "--store", store)
        assert run("acl", "list", "bob", "--store", store).splitlines() == ["bob", "  deny  All on *  (default)"]
        run("acl", "revoke", "bob", "--store", store)
        assert run("acl", "list", "bob", "--store", store) == ""

    @pytest.mark.parametrize(
        ("words", "why"),
        [
            (("grant", "bob", "T", "Pub"), "is no resource"),
            (("grant", "bob", "Topic:T", "Fly"), "is no action"),
            (("grant", "bob", "Topic:T", "Pub", "--ip", "x"), "IP address"),
            (("grant", "eve", "Topic:T", "Pub"), "there is no user eve"),
            (("revoke", "bob", "T"), "is no resource"),
            (("revoke", "bob"), "has no rights"),
        ],
    )
    def test_an_error_names_the_reason(self, store: str, words: tuple[str, ...], why: str) -> None:
        run("users", "add", "bob", "--store", store, secret=SECRET)
        assert why in run("acl", *words, "--store", store, code=1)


class TestCredentials:
    def test_the_access_key_comes_from_the_environment_or_a_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert own_access_key() is None
        path = tmp_path / "key.json"
        write_credentials(Disk(), path, AccessKey("eve", SECRET))
        monkeypatch.setenv("WHEELMQ_CREDENTIALS", str(path))
        assert own_access_key() == AccessKey("eve", SECRET)
        monkeypatch.setenv("WHEELMQ_ACCESS_KEY", "bob")
        with pytest.raises(click.ClickException, match="WHEELMQ_SECRET_KEY is not set"):
            own_access_key()
        monkeypatch.setenv("WHEELMQ_SECRET_KEY", SECRET)
        assert own_access_key() == AccessKey("bob", SECRET)
        path.chmod(0o644)
        monkeypatch.delenv("WHEELMQ_ACCESS_KEY")
        monkeypatch.delenv("WHEELMQ_SECRET_KEY")
        with pytest.raises(click.ClickException, match="chmod 600"):
            own_access_key()

    def test_no_child_inherits_a_key_that_was_taken(self) -> None:
        environ = {"A": "1", **variables_of(AccessKey("bob", SECRET)), "WHEELMQ_CREDENTIALS": "/key"}
        assert take_access_key(environ) == AccessKey("bob", SECRET)
        assert environ == {"A": "1"} and take_access_key(environ) is None

    def test_no_option_of_a_command_takes_a_secret(self) -> None:
        """A command line is readable for other users of the machine."""
        found = []

        def look(command: click.Command, path: str) -> None:
            for option in command.params:
                words = " ".join([*option.opts, option.name or ""]).lower()
                is_file = words.endswith("_file")
                if not is_file and any(word in words for word in ("secret", "password", "token")):
                    found.append(f"{path}: {words}")
            if isinstance(command, click.Group):
                context = click.Context(command)
                for name in command.list_commands(context):
                    inner = command.get_command(context, name)
                    assert inner is not None
                    look(inner, f"{path} {name}")

        look(main, "wheelmq")
        assert found == []
