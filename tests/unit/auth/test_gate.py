"""The gate: white lists, kept decisions, and signatures of older clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelmq.auth.acls import Acls, make_entry
from wheelmq.auth.gate import Gate, NoRight, Unauthenticated
from wheelmq.auth.needs import Right
from wheelmq.auth.policies import AccessList, Action, Resource
from wheelmq.auth.sealing import KeyFile
from wheelmq.auth.settings import AuthSettings
from wheelmq.auth.users import User, UserKind, Users
from wheelmq.formats.disk.message import Host
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import SIGNATURE, AccessKey, is_signed_with, signed_content
from wheelmq.testing.disk import SimulatedDisk

BOB = AccessKey("bob", "the secret of bob")
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


class Here:
    cluster = "DefaultCluster"

    def topic_at(self, position: int) -> str | None:
        return None


@dataclass
class Peer:
    peer: Host = field(default_factory=lambda: Host(b"\x0a\0\0\1", 1))
    user: str | None = None


class Gates:
    """A gate with the user bob."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.users = Users(KeyFile(SimulatedDisk(), folder / "key"), None)
        self.users.put("bob", User("bob", BOB.secret))
        self.acls = Acls(None)
        chosen = AuthSettings(authentication_enabled=True, **settings)  # type: ignore[arg-type]
        self.gate = Gate(chosen, self.users, self.acls, Here())
        self.peer = Peer()

    def admit(self, command: Command, key: AccessKey | None = None) -> str | None:
        if key is not None:
            key.sign(command)
        self.gate.admit(command, self.peer)
        return self.peer.user


def route(topic: str = "T") -> Command:
    return Command(code=ROUTE, ext={"topic": topic})


class TestWhitelists:
    def test_a_listed_code_needs_no_signature(self, tmp_path: Path) -> None:
        gates = Gates(tmp_path, authentication_whitelist=(str(int(ROUTE)),))
        assert gates.admit(route()) is None
        with pytest.raises(Unauthenticated):
            gates.admit(Command(code=RequestCode.GET_BROKER_CLUSTER_INFO))

    def test_a_signature_of_a_listed_code_must_be_right(self, tmp_path: Path) -> None:
        gates = Gates(tmp_path, authentication_whitelist=(str(int(ROUTE)),))
        assert gates.admit(route(), BOB) == "bob"
        with pytest.raises(Unauthenticated):
            gates.admit(route(), AccessKey("bob", "guessed"))
        assert gates.peer.user is None, "the user of an earlier request is forgotten"

    def test_a_code_without_signature_still_needs_rights(self, tmp_path: Path) -> None:
        gates = Gates(tmp_path, authorization_enabled=True, authentication_whitelist=(str(int(ROUTE)),))
        with pytest.raises(NoRight, match="User:nobody"):
            gates.admit(route())

    def test_a_code_can_be_free_of_rights(self, tmp_path: Path) -> None:
        gates = Gates(tmp_path, authorization_enabled=True, authorization_whitelist=(str(int(ROUTE)),))
        assert gates.admit(route(), BOB) == "bob"
        with pytest.raises(NoRight):
            gates.admit(Command(code=RequestCode.GET_KV_CONFIG), BOB)


class TestRights:
    def test_decisions_are_kept_until_a_user_or_a_list_changes(self, tmp_path: Path) -> None:
        gates = Gates(tmp_path, authorization_enabled=True)
        gates.acls.put("bob", AccessList(custom=[make_entry("Topic:T", ["Pub"], "Allow", [])]))
        for _ in range(3):
            gates.admit(route(), BOB)
        assert len(gates.gate._verdicts) == 1
        gates.acls.put("bob", AccessList(custom=[make_entry("Topic:T", ["Pub"], "Deny", [])]))
        with pytest.raises(NoRight, match="the decision is deny"):
            gates.admit(route(), BOB)
        gates.users.put("bob", User("bob", BOB.secret, UserKind.SUPER))
        assert gates.admit(route(), BOB) == "bob"
        gates.users.put("bob", None)
        with pytest.raises(Unauthenticated):
            gates.admit(route(), BOB)

    def test_the_route_of_the_model_topic_needs_no_right(self, tmp_path: Path) -> None:
        """A Java producer asks for it before its first send to a new topic."""
        gates = Gates(tmp_path, authorization_enabled=True)
        assert gates.admit(route("TBW102"), BOB) == "bob"
        with pytest.raises(NoRight):
            gates.admit(route("TBW1021"), BOB)

    def test_a_retry_topic_belongs_to_its_group(self, tmp_path: Path) -> None:
        gates = Gates(tmp_path, authorization_enabled=True)
        gates.acls.put("bob", AccessList(custom=[make_entry("Group:g", ["Sub"], "Allow", [])]))
        assert gates.admit(route("%RETRY%g"), BOB) == "bob"
        for topic in ("%RETRY%other", "%RETRY%", "%DLQ%g", "g"):
            with pytest.raises(NoRight):
                gates.admit(route(topic), BOB)

    def test_a_request_that_names_no_resource_needs_a_pattern_for_all(self, tmp_path: Path) -> None:
        gates = Gates(tmp_path, authorization_enabled=True)
        gates.acls.put("bob", AccessList(custom=[make_entry("Topic:T", ["All"], "Allow", [])]))
        with pytest.raises(NoRight):
            gates.admit(Command(code=ROUTE), BOB)
        gates.acls.put("bob", AccessList(custom=[make_entry("Topic:*", ["All"], "Allow", [])]))
        assert gates.admit(Command(code=ROUTE), BOB) == "bob"

    def test_everyone_has_each_right_while_no_rights_are_checked(self, tmp_path: Path) -> None:
        gates = Gates(tmp_path)
        right = Right(Resource.parse("Topic:T"), frozenset({Action.PUB}))
        assert gates.gate.may(None, right, gates.peer.peer) and gates.gate.may("bob", right, gates.peer.peer)
        gates = Gates(tmp_path, authorization_enabled=True)
        assert not gates.gate.may(None, right, gates.peer.peer) and not gates.gate.may("bob", right, gates.peer.peer)
        assert not gates.gate.may("deleted", right, gates.peer.peer)


class TestSignatures:
    def test_an_older_client_leaves_out_the_flag_of_its_query(self) -> None:
        """Java clients up to V4_9_3 do so."""
        fields = {"topic": "T", "_UNIQUE_KEY_QUERY": "true", "AccessKey": "bob"}
        assert signed_content(Command(code=12, ext=fields, version=399)) == b"bobT"
        assert signed_content(Command(code=12, ext=fields, version=401)) == b"bobtrueT"

    def test_numbers_are_signed_in_their_written_form(self) -> None:
        """ali-ons sends JSON numbers and booleans, and signs their texts."""
        header = b'{"code":310,"opaque":1,"extFields":{"AccessKey":"bob","OnsChannel":"ALIYUN","d":4,"k":false}}'
        raw = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
        assert signed_content(frame.decode(raw, 0, len(raw))) == b"bobALIYUN4false"

    @given(
        st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=6),
        st.binary(max_size=20),
        st.text(min_size=1, max_size=20),
    )
    def test_a_signature_holds_for_its_content_and_secret_alone(
        self, fields: dict[str, str], body: bytes, secret: str
    ) -> None:
        command = Command(code=1, ext=dict(fields), body=body)
        AccessKey("bob", secret).sign(command)
        key = secret.encode("utf-8", "replace")
        assert is_signed_with(key, command)
        assert not is_signed_with(key + b"x", command)
        assert not is_signed_with(key, Command(code=1, ext=command.ext, body=body + b"x"))
        for wrong in ("", "x", "ü" * 28, command.ext[SIGNATURE][:-1]):
            assert not is_signed_with(key, Command(code=1, ext={**command.ext, SIGNATURE: wrong}, body=body))
