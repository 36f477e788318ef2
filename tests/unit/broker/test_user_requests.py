"""Requests about users and access lists, as mqadmin sends them, and the audit log of them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.broker.test_access import BOB, ROOT, ask
from wheelmq.auth.users import UserKind
from wheelmq.broker.state.access_tables import AccessTables
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.testing.disk import Call, SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.workers import HeldWorker

PASSWORD = "a password that no answer has"


class Lines:
    """An audit log in memory."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.raw = b""
        self.fails = False

    def append(self, line: bytes) -> None:
        if self.fails:
            raise OSError(errno.ENOSPC, "no space left on device")
        assert line.endswith(b"\n")
        self.raw += line
        self.lines.append(msgspec.json.decode(line))


@pytest.fixture
def audit() -> Lines:
    return Lines()


@pytest.fixture
def secured(tmp_path: Path, disk: SimulatedDisk, audit: Lines) -> Iterator[BrokerHarness]:
    """A broker with the super user root, whose password is in the settings."""
    first = msgspec.json.encode({"username": ROOT.name, "password": ROOT.secret}).decode()
    with BrokerHarness(
        tmp_path / "store",
        disk=disk,
        audit_sink=audit,
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user=first,
    ) as harness:
        yield harness


def tables(harness: BrokerHarness) -> AccessTables:
    return harness.broker.parts.access.tables


def request(
    harness: BrokerHarness, code: RequestCode, body: object = None, key: AccessKey | None = ROOT, **fields: object
) -> Command:
    raw = b"" if body is None else msgspec.json.encode(body)
    return ask(harness, Command(code=code, ext=headers.texts(**fields), body=raw), key)


def create(harness: BrokerHarness, name: str = "bob", key: AccessKey | None = ROOT, **facts: str) -> Command:
    info = {"username": name, "password": BOB.secret, **facts}
    return request(harness, RequestCode.AUTH_CREATE_USER, info, key, username=name)


def acl(*entries: dict[str, object], kind: str = "Custom", name: str = "bob") -> dict[str, object]:
    return {"subject": f"User:{name}", "policies": [{"policyType": kind, "entries": list(entries)}]}


def entry(resource: str, *actions: str, decision: str = "Allow", ips: tuple[str, ...] = ()) -> dict[str, object]:
    addresses = {"sourceIps": list(ips)} if ips else {}
    return {"resource": resource, "actions": list(actions), "decision": decision, **addresses}


class TestUsers:
    def test_a_user_is_created_changed_and_deleted(self, secured: BrokerHarness) -> None:
        assert create(secured).code == ResponseCode.SUCCESS
        found = request(secured, RequestCode.AUTH_GET_USER, username="bob")
        assert msgspec.json.decode(found.body) == {"username": "bob", "userType": "Normal", "userStatus": "enable"}
        changed = {"userType": "Super", "userStatus": "disable"}
        assert request(secured, RequestCode.AUTH_UPDATE_USER, changed, username="bob").code == 0
        user = tables(secured).users.get("bob")
        assert user is not None and user.is_super and not user.is_enabled and user.secret == BOB.secret
        assert request(secured, RequestCode.AUTH_UPDATE_USER, {"password": "another one"}, username="bob").code == 0
        user = tables(secured).users.get("bob")
        assert user is not None and (user.secret, user.is_super) == ("another one", True)
        assert request(secured, RequestCode.AUTH_DELETE_USER, username="bob").code == 0
        assert request(secured, RequestCode.AUTH_GET_USER, username="bob").body == b""
        assert request(secured, RequestCode.AUTH_DELETE_USER, username="bob").code == 0, "as Apache answers"

    def test_users_survive_a_restart_and_a_kill(self, secured: BrokerHarness) -> None:
        create(secured)
        request(secured, RequestCode.AUTH_CREATE_ACL, acl(entry("Topic:T", "Pub")), subject="User:bob")
        for clean in (True, False):
            secured.restart(clean=clean)
            assert [user.name for user in tables(secured).users.all()] == ["bob", "root"]
            assert ask(secured, secured.send_command("T"), BOB).code == 0

    def test_no_answer_and_no_file_has_a_password(self, secured: BrokerHarness) -> None:
        info = {"username": "eve", "password": PASSWORD}
        answers = [request(secured, RequestCode.AUTH_CREATE_USER, info, username="eve")]
        answers += [
            request(secured, RequestCode.AUTH_GET_USER, username="eve"),
            request(secured, RequestCode.AUTH_LIST_USER),
        ]
        answers += [request(secured, RequestCode.AUTH_UPDATE_USER, {"password": PASSWORD}, username="eve")]
        answers += [
            request(secured, RequestCode.GET_BROKER_CONFIG),
            request(secured, RequestCode.WMQ_METRICS, topics=5),
        ]
        assert all(answer.code == 0 for answer in answers)
        secured.stop()
        for secret in (PASSWORD, ROOT.secret):
            assert not any(secret in str(answer) or secret.encode() in bytes(answer.body) for answer in answers)
            files = [path for path in secured._folder.rglob("*") if path.is_file()]
            assert not any(secret.encode() in path.read_bytes() for path in files)

    def test_the_inner_user_of_the_settings_has_all_rights_and_is_in_no_list(self, tmp_path: Path) -> None:
        inner = AccessKey("inner", "secret of the settings")
        credentials = msgspec.json.encode({"accessKey": inner.name, "secretKey": inner.secret}).decode()
        with BrokerHarness(
            tmp_path,
            authentication_enabled=True,
            authorization_enabled=True,
            inner_client_authentication_credentials=credentials,
        ) as harness:
            assert create(harness, key=inner).code == 0
            assert create(harness, key=AccessKey("inner", "another secret"), name="eve").code != 0
            assert create(harness, key=inner, name="inner").code != 0
            listed = request(harness, RequestCode.AUTH_LIST_USER, key=inner)
            assert [user["username"] for user in msgspec.json.decode(listed.body)] == ["bob"]

    def test_a_list_has_the_users_whose_names_contain_the_filter(self, secured: BrokerHarness) -> None:
        create(secured)
        assert request(secured, RequestCode.AUTH_LIST_USER, filter="nobody").body == b""
        found = msgspec.json.decode(request(secured, RequestCode.AUTH_LIST_USER, filter="o").body)
        assert [one["username"] for one in found] == ["bob", "root"]
        found = msgspec.json.decode(request(secured, RequestCode.AUTH_LIST_USER, filter="oo").body)
        assert found == [{"username": "root", "userType": "Super", "userStatus": "enable"}]

    @pytest.mark.parametrize(
        ("code", "name", "info", "answer", "remark"),
        [
            (RequestCode.AUTH_CREATE_USER, "", {}, 29, "The username is blank"),
            (RequestCode.AUTH_CREATE_USER, "root", {"password": PASSWORD}, 16, "The user is existed"),
            (RequestCode.AUTH_CREATE_USER, "eve", {}, 16, "password can not be blank"),
            (RequestCode.AUTH_CREATE_USER, "eve", {"password": "short"}, 16, "6 to 512"),
            (RequestCode.AUTH_CREATE_USER, "a b", {"password": PASSWORD}, 16, "no name"),
            (RequestCode.AUTH_CREATE_USER, "eve", {"password": PASSWORD, "userType": "Boss"}, 29, "Super, Normal"),
            (RequestCode.AUTH_CREATE_USER, "eve", {"password": PASSWORD, "userStatus": "x"}, 29, "enable, disable"),
            (RequestCode.AUTH_CREATE_USER, "wheelmq-pipeline", {"password": PASSWORD}, 16, "belongs to the broker"),
            (RequestCode.AUTH_UPDATE_USER, "eve", {"password": PASSWORD}, 16, "The user is not exist"),
        ],
    )
    def test_a_rejected_change_names_the_reason(
        self, secured: BrokerHarness, code: RequestCode, name: str, info: dict[str, str], answer: int, remark: str
    ) -> None:
        found = request(secured, code, info, username=name)
        assert found.code == answer and remark in (found.remark or "")
        assert [user.name for user in tables(secured).users.all()] == ["root"]

    def test_an_administrator_who_is_no_super_user_touches_no_super_user(self, secured: BrokerHarness) -> None:
        create(secured)
        admin = acl(entry("Cluster:DefaultCluster", "All"))
        assert request(secured, RequestCode.AUTH_CREATE_ACL, admin, subject="User:bob").code == 0
        assert create(secured, "eve", BOB).code == 0
        assert create(secured, "boss", BOB, userType="Super").code == ResponseCode.SYSTEM_ERROR
        for name, info in (("root", {"password": PASSWORD}), ("bob", {"userType": "Super"})):
            assert request(secured, RequestCode.AUTH_UPDATE_USER, info, BOB, username=name).code in (1, 16)
        assert request(secured, RequestCode.AUTH_DELETE_USER, None, BOB, username="root").code == 16
        root, bob = tables(secured).users.get("root"), tables(secured).users.get("bob")
        assert root is not None and bob is not None and root.secret == ROOT.secret and not bob.is_super

    def test_a_change_that_is_not_on_disk_is_taken_back(self, secured: BrokerHarness, disk: SimulatedDisk) -> None:
        create(secured)
        disk.fail_call(1, OSError(errno.EIO, "bad disk"), [Call.REPLACE])
        assert request(secured, RequestCode.AUTH_DELETE_USER, username="bob").code == ResponseCode.SYSTEM_ERROR
        disk.heal()
        assert tables(secured).users.get("bob") is not None
        secured.restart()
        assert tables(secured).users.get("bob") is not None

    def test_the_user_of_the_settings_is_created_once(self, secured: BrokerHarness) -> None:
        assert request(secured, RequestCode.AUTH_UPDATE_USER, {"password": "changed later"}, username="root").code == 0
        secured.restart()
        user = tables(secured).users.get("root")
        assert user is not None and user.secret == "changed later"


class TestWithoutAuthentication:
    def test_only_this_machine_changes_users(self, harness: BrokerHarness) -> None:
        """Otherwise a stranger could plant a super user before an operator turns authentication on."""
        info = msgspec.json.encode({"password": PASSWORD, "userType": "Super"})
        for code in (RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_USER, RequestCode.AUTH_GET_ACL):
            command = Command(code=code, ext={"username": "root", "subject": "User:root"}, body=info)
            answer = harness.ask(command, harness.connect(b"\x0a\0\0\1"))
            assert answer.code == ResponseCode.NO_PERMISSION and "only this machine" in (answer.remark or "")
            answer = harness.ask(command, harness.connect(b"\x7f\0\0\1"))
            assert answer.code == 0, answer.remark
        user = tables(harness).users.get("root")
        assert user is not None and user.kind is UserKind.SUPER


class TestAcls:
    def test_a_list_is_created_merged_and_deleted(self, secured: BrokerHarness) -> None:
        create(secured)
        subject = {"subject": "User:bob"}
        assert request(secured, RequestCode.AUTH_CREATE_ACL, acl(entry("Topic:T", "Pub", "Sub")), **subject).code == 0
        more = acl(entry("Topic:T", "Get", decision="Deny"), entry("Group:*", "All", ips=("10.0.0.0/8",)))
        assert request(secured, RequestCode.AUTH_UPDATE_ACL, more, **subject).code == 0
        default = acl(entry("Topic:T", "Sub"), kind="Default")
        assert request(secured, RequestCode.AUTH_UPDATE_ACL, default, **subject).code == 0
        found = msgspec.json.decode(request(secured, RequestCode.AUTH_GET_ACL, **subject).body)
        first = [entry("Topic:T", "Get", decision="Deny"), entry("Group:*", "All", ips=("10.0.0.0/8",))]
        assert found == {
            "subject": "User:bob",
            "policies": [
                {"policyType": "Custom", "entries": first},
                {"policyType": "Default", "entries": [entry("Topic:T", "Sub")]},
            ],
        }
        one = {**subject, "resource": "Topic:T"}
        assert request(secured, RequestCode.AUTH_DELETE_ACL, policyType="Default", **one).code == 0
        found = msgspec.json.decode(request(secured, RequestCode.AUTH_GET_ACL, **subject).body)
        assert [policy["policyType"] for policy in found["policies"]] == ["Custom"]
        assert request(secured, RequestCode.AUTH_DELETE_ACL, **one).code == 0
        found = msgspec.json.decode(request(secured, RequestCode.AUTH_GET_ACL, **subject).body)
        assert [one["resource"] for one in found["policies"][0]["entries"]] == ["Group:*"]
        assert request(secured, RequestCode.AUTH_DELETE_ACL, **subject).code == 0
        assert request(secured, RequestCode.AUTH_GET_ACL, **subject).body == b""

    def test_lists_are_found_by_subject_and_resource(self, secured: BrokerHarness) -> None:
        for name in ("bob", "eve"):
            create(secured, name)
            body = acl(entry(f"Topic:{name}", "Pub"), entry("Group:g", "Sub"), name=name)
            assert request(secured, RequestCode.AUTH_CREATE_ACL, body, subject=f"User:{name}").code == 0
        found = msgspec.json.decode(request(secured, RequestCode.AUTH_LIST_ACL).body)
        assert [one["subject"] for one in found] == ["User:bob", "User:eve"]
        found = msgspec.json.decode(request(secured, RequestCode.AUTH_LIST_ACL, resourceFilter="Topic:e").body)
        assert [one["subject"] for one in found] == ["User:eve"]
        assert [one["resource"] for one in found[0]["policies"][0]["entries"]] == ["Topic:eve"]
        assert request(secured, RequestCode.AUTH_LIST_ACL, subjectFilter="User:x").body == b""

    def test_the_list_of_a_deleted_user_goes_with_it(self, secured: BrokerHarness) -> None:
        """Otherwise a later user of the same name would inherit its rights."""
        create(secured)
        request(secured, RequestCode.AUTH_CREATE_ACL, acl(entry("Topic:T", "Pub")), subject="User:bob")
        request(secured, RequestCode.AUTH_DELETE_USER, username="bob")
        assert tables(secured).acls.get("bob") is None
        create(secured)
        assert ask(secured, secured.send_command("T"), BOB).code == ResponseCode.NO_PERMISSION
        secured.restart()
        assert tables(secured).acls.get("bob") is None

    @pytest.mark.parametrize("writes", [0, 1, 2])
    def test_a_kill_leaves_no_list_without_its_user(
        self, secured: BrokerHarness, tmp_path: Path, disk: SimulatedDisk, writes: int
    ) -> None:
        """The broker is killed after 0, 1 or 2 writes of tables. A later user of the same name gets no rights."""
        create(secured)
        request(secured, RequestCode.AUTH_CREATE_ACL, acl(entry("Topic:T", "Pub")), subject="User:bob")
        secured.stop()
        held = HeldWorker()
        with BrokerHarness(tmp_path / "store", disk=disk, tables=held, authentication_enabled=True) as killed:
            command = Command(code=RequestCode.AUTH_DELETE_USER, ext=headers.texts(username="bob"))
            ROOT.sign(command)
            deleted = killed.submit(command, killed.connect())
            for _ in range(writes):
                while not held.run():
                    killed.advance(100)
            killed.tick()
            assert (deleted.answer is not None) == (writes == 2)
            killed.restart(clean=False)
            found = tables(killed)
            assert (found.users.get("bob") is not None) == (writes < 2)
            assert (found.acls.get("bob") is not None) == (writes < 1)

    def test_a_change_counts_at_once(self, secured: BrokerHarness) -> None:
        create(secured)
        assert ask(secured, secured.send_command("T"), BOB).code == ResponseCode.NO_PERMISSION
        request(secured, RequestCode.AUTH_CREATE_ACL, acl(entry("Topic:T", "Pub")), subject="User:bob")
        assert ask(secured, secured.send_command("T"), BOB).code == 0
        request(secured, RequestCode.AUTH_UPDATE_ACL, acl(entry("Topic:T", "Pub", decision="Deny")), subject="User:bob")
        answer = ask(secured, secured.send_command("T"), BOB)
        assert answer.remark == "User:bob has no permission to access Topic:T from 10.0.0.1, the decision is deny."

    @pytest.mark.parametrize(
        ("subject", "body", "code", "remark"),
        [
            ("", acl(entry("Topic:T", "Pub")), 29, "The subject is blank"),
            ("bob", acl(entry("Topic:T", "Pub")), 29, "write User:NAME"),
            ("User:nobody", acl(entry("Topic:T", "Pub")), 16, "The subject of User:nobody is not exist."),
            ("User:bob", {"policies": []}, 16, "The policies is empty."),
            ("User:bob", {"policies": [{"policyType": "Custom"}]}, 16, "The policy entries is empty."),
            ("User:bob", acl({"actions": ["Pub"], "decision": "Allow"}), 16, "The resource is null."),
            ("User:bob", acl(entry("T", "Pub")), 16, "is no resource"),
            ("User:bob", acl(entry("Topic:T")), 16, "The actions is empty."),
            ("User:bob", acl(entry("Topic:T", "Any")), 16, "is no action"),
            ("User:bob", acl(entry("Topic:T", "Pub", decision="x")), 16, "The decision is null or illegal."),
            ("User:bob", acl(entry("Topic:T", "Pub", ips=("x",))), 16, "IP address"),
            ("User:bob", acl(entry("Topic:T", "Pub"), kind="x"), 29, "Custom, Default"),
        ],
    )
    def test_a_rejected_list_names_the_reason(
        self, secured: BrokerHarness, subject: str, body: dict[str, object], code: int, remark: str
    ) -> None:
        create(secured)
        answer = request(secured, RequestCode.AUTH_CREATE_ACL, body, subject=subject)
        assert answer.code == code and remark in (answer.remark or "")
        assert tables(secured).acls.all() == {}

    def test_a_missing_list_is_reported_as_apache_does(self, secured: BrokerHarness) -> None:
        create(secured)
        answer = request(secured, RequestCode.AUTH_DELETE_ACL, subject="User:bob")
        assert (answer.code, answer.remark) == (16, "The acl is not exist.")
        answer = request(secured, RequestCode.AUTH_GET_ACL, subject="User:nobody")
        assert (answer.code, answer.remark) == (16, "The subject is not exist.")


class TestAudit:
    def test_a_line_says_who_did_what_from_where(self, secured: BrokerHarness, audit: Lines) -> None:
        command = Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext=headers.texts(
            topic="Orders", readQueueNums=4, writeQueueNums=4, perm=6
        ))  # fmt: skip
        assert ask(secured, command, ROOT).code == 0
        (line,) = [one for one in audit.lines if one["request"] == "UPDATE_AND_CREATE_TOPIC"]
        assert line["user"] == "root" and line["address"].startswith("10.0.0.1:") and line["outcome"] == "done"
        assert line["resources"] == ["Topic:Orders"] and line["fields"]["perm"] == "6"
        assert line["time"].endswith("Z") and "AccessKey" not in line["fields"]

    def test_a_failed_and_a_rejected_request_have_lines(self, secured: BrokerHarness, audit: Lines) -> None:
        create(secured)
        request(secured, RequestCode.DELETE_TOPIC_IN_BROKER, topic="TBW102")
        request(secured, RequestCode.DELETE_TOPIC_IN_BROKER, None, BOB, topic="T")
        request(secured, RequestCode.DELETE_TOPIC_IN_BROKER, None, AccessKey("root", "guessed"), topic="T")
        failed, forbidden, wrong = [one for one in audit.lines if one["request"] == "DELETE_TOPIC_IN_BROKER"]
        assert (failed["outcome"], failed["code"]) == ("failed", 29)
        assert (forbidden["outcome"], forbidden["user"], forbidden["code"]) == ("rejected", "bob", 16)
        assert (wrong["outcome"], wrong["user"]) == ("rejected", "") and "access key root" in wrong["remark"]

    def test_no_line_has_a_secret(self, secured: BrokerHarness, audit: Lines) -> None:
        info = {"password": PASSWORD}
        request(secured, RequestCode.AUTH_CREATE_USER, info, username="eve")
        request(secured, RequestCode.AUTH_UPDATE_USER, info, username="eve")
        ask(secured, Command(code=RequestCode.UPDATE_BROKER_CONFIG, body=f"traceOn=false\nx={PASSWORD}".encode()), ROOT)
        assert len(audit.lines) == 3 and audit.lines[-1]["settings"] == ["traceOn", "x"]
        for secret in (PASSWORD, ROOT.secret, "Signature"):
            assert secret.encode() not in audit.raw

    def test_requests_of_clients_have_no_line(self, secured: BrokerHarness, audit: Lines) -> None:
        for _ in range(3):
            assert ask(secured, secured.send_command("T"), ROOT).code == 0
        ask(secured, secured.send_command("T"))
        assert audit.lines == []

    def test_a_flood_of_rejected_requests_leaves_room(self, secured: BrokerHarness, audit: Lines) -> None:
        for _ in range(200):
            request(secured, RequestCode.DELETE_TOPIC_IN_BROKER, None, None, topic="T")
        assert len(audit.lines) == 60
        create(secured)
        assert audit.lines[-1]["request"] == "AUTH_CREATE_USER" and audit.lines[-1]["notShown"] == 140
        secured.advance(60_000)
        request(secured, RequestCode.DELETE_TOPIC_IN_BROKER, None, None, topic="T")
        assert audit.lines[-1]["outcome"] == "rejected"

    def test_without_authentication_there_are_lines_too(self, tmp_path: Path, audit: Lines) -> None:
        with BrokerHarness(tmp_path / "store", audit_sink=audit) as harness:
            harness.ask(Command(code=RequestCode.CLEAN_UNUSED_TOPIC))
        assert [(one["request"], one["outcome"], one["user"]) for one in audit.lines] == [
            ("CLEAN_UNUSED_TOPIC", "done", "")
        ]

    def test_a_log_that_cannot_be_written_stops_no_request(
        self, secured: BrokerHarness, audit: Lines, caplog: pytest.LogCaptureFixture
    ) -> None:
        audit.fails = True
        assert create(secured).code == 0
        assert "the audit log cannot be written" in caplog.text
