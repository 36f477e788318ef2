"""Users, the encryption of their secrets, and the files."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from wheelmq.auth.acls import ENTRIES_MAX, Acls, BadAcl, StoredAcls, StoredEntry, StoredList, make_entry
from wheelmq.auth.credentials_file import BadCredentials, read_credentials, write_credentials
from wheelmq.auth.files import ACLS_NAME, USERS_NAME, FollowedAccess, UnreadableAccess, load_strictly
from wheelmq.auth.inner_users import PIPELINE_KEY_NAME, pipeline_key
from wheelmq.auth.policies import AccessList, Decision, PolicyKind, Resource
from wheelmq.auth.sealing import KEY_BYTES, KeyFile, KeyProblem, Sealer
from wheelmq.auth.users import BadUser, StoredUsers, User, UserKind, Users, UserStatus
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.store import config_file
from wheelmq.testing.disk import SimulatedDisk

SECRET = "a secret of bob"


@pytest.fixture
def key_file(tmp_path: Path, disk: SimulatedDisk) -> KeyFile:
    return KeyFile(disk, tmp_path / "store.key")


@pytest.fixture
def users(key_file: KeyFile) -> Users:
    return Users(key_file, None)


class TestSealing:
    def test_a_sealed_secret_opens_under_its_name_and_key_alone(self) -> None:
        sealer = Sealer(b"k" * KEY_BYTES)
        sealed = sealer.seal("bob", SECRET)
        assert SECRET not in sealed and sealer.open("bob", sealed) == SECRET
        assert sealer.seal("bob", SECRET) != sealed, "the same secret is not recognizable"
        with pytest.raises(KeyProblem, match="was not encrypted with this key"):
            sealer.open("eve", sealed)
        with pytest.raises(KeyProblem):
            Sealer(b"l" * KEY_BYTES).open("bob", sealed)

    @pytest.mark.parametrize("sealed", ["", "x", "AAAA", "%%%%"])
    def test_a_damaged_secret_is_reported(self, sealed: str) -> None:
        with pytest.raises(KeyProblem):
            Sealer(b"k" * KEY_BYTES).open("bob", sealed)

    def test_a_changed_byte_is_detected(self) -> None:
        sealer = Sealer(b"k" * KEY_BYTES)
        sealed = sealer.seal("bob", SECRET)
        changed = sealed[:20] + ("A" if sealed[20] != "A" else "B") + sealed[21:]
        with pytest.raises(KeyProblem):
            sealer.open("bob", changed)


class TestKeyFile:
    def test_the_first_use_creates_a_private_file(self, key_file: KeyFile) -> None:
        key_file.sealer(create=True)
        assert key_file.path.stat().st_mode & 0o777 == 0o600
        assert len(bytes.fromhex(key_file.path.read_text().strip())) == KEY_BYTES

    def test_a_missing_file_is_not_replaced_where_secrets_exist(self, key_file: KeyFile) -> None:
        with pytest.raises(KeyProblem, match=r"store\.key is missing.*auth_key_file"):
            key_file.sealer(create=False)
        assert not key_file.path.exists()

    @pytest.mark.parametrize("mode", [0o644, 0o604, 0o620, 0o606])
    def test_a_file_that_others_can_read_is_rejected(self, disk: SimulatedDisk, key_file: KeyFile, mode: int) -> None:
        key_file.sealer(create=True)
        key_file.path.chmod(mode)
        with pytest.raises(KeyProblem, match="chmod 600"):
            KeyFile(disk, key_file.path).sealer(create=False)

    @pytest.mark.parametrize("content", ["", "abc", "z" * 64, "ab" * 31])
    def test_a_file_without_a_key_is_rejected(self, key_file: KeyFile, content: str) -> None:
        key_file.path.write_text(content)
        key_file.path.chmod(0o600)
        with pytest.raises(KeyProblem, match="64 hex digits"):
            key_file.sealer(create=True)


class TestUsers:
    def test_users_survive_in_the_content_of_their_file(self, key_file: KeyFile, users: Users) -> None:
        users.put("bob", users.make("bob", SECRET))
        users.put("root", users.make("root", "another secret", UserKind.SUPER, UserStatus.DISABLE))
        raw = config_file.encode(users.content())
        assert SECRET.encode() not in raw and b"another secret" not in raw
        again = Users(key_file, msgspec.json.decode(raw, type=StoredUsers))
        assert again.all() == users.all()
        assert [one.name for one in again.all()] == ["bob", "root"]

    def test_a_repr_hides_the_secret(self, users: Users) -> None:
        user = users.make("bob", SECRET)
        assert SECRET not in repr(user) and SECRET not in str([user])

    def test_a_change_keeps_the_other_facts(self, users: Users) -> None:
        users.put("bob", users.make("bob", SECRET, UserKind.SUPER))
        disabled = users.make("bob", status=UserStatus.DISABLE)
        assert (disabled.secret, disabled.kind, disabled.is_enabled) == (SECRET, UserKind.SUPER, False)
        assert users.make("bob", "a new secret").secret == "a new secret"

    @pytest.mark.parametrize("name", ["", " ", "a b", "a:b", "ü", "x" * 129, "a\n"])
    def test_a_name_has_printable_characters(self, users: Users, name: str) -> None:
        with pytest.raises(BadUser, match="no name"):
            users.make(name, SECRET)

    @pytest.mark.parametrize("secret", ["", "   ", "short", "x" * 513, "line\nfeed"])
    def test_a_secret_has_a_length(self, users: Users, secret: str) -> None:
        with pytest.raises(BadUser) as rejected:
            users.make("bob", secret)
        assert not secret.strip() or secret not in str(rejected.value)

    def test_a_user_of_the_broker_itself_is_not_listed_and_keeps_its_name(self, users: Users) -> None:
        users.add_built_in(User("inner", "x" * 20, UserKind.SUPER))
        found = users.find("inner")
        assert found is not None and found.is_super and users.get("inner") is None and users.all() == []
        with pytest.raises(BadUser, match="belongs to the broker"):
            users.make("inner", SECRET)

    def test_users_of_another_key_are_not_loaded(self, disk: SimulatedDisk, tmp_path: Path, users: Users) -> None:
        users.put("bob", users.make("bob", SECRET))
        other = KeyFile(disk, tmp_path / "other.key")
        other.sealer(create=True)
        with pytest.raises(KeyProblem, match="another key"):
            Users(other, users.content())

    def test_a_stored_user_of_an_unknown_kind_is_not_loaded(self, key_file: KeyFile, users: Users) -> None:
        users.put("bob", users.make("bob", SECRET))
        content = users.content()
        content.users["bob"].user_type = "Root"
        with pytest.raises(KeyProblem, match="Root"):
            Users(key_file, content)


class TestAcls:
    def test_lists_survive_in_the_content_of_their_file(self) -> None:
        acls = Acls(None)
        entries = [
            make_entry("Topic:A*", ["Pub", "sub"], "allow", ["10.0.0.0/8"]),
            make_entry("*", ["All"], "Deny", []),
        ]
        acls.put("bob", acls.merged("bob", {PolicyKind.CUSTOM: entries, PolicyKind.DEFAULT: entries[:1]}))
        raw = config_file.encode(acls.content())
        again = Acls(msgspec.json.decode(raw, type=StoredAcls))
        assert again.all() == acls.all() != {}

    @pytest.mark.parametrize(
        ("stored", "why"),
        [
            (StoredEntry(resource="x", actions=["Pub"], decision="Allow"), "is no resource"),
            (StoredEntry(resource="Topic:T", actions=["Fly"], decision="Allow"), "is no action"),
            (StoredEntry(resource="Topic:T", actions=["Pub"], decision="Maybe"), "decision"),
            (StoredEntry(resource="Topic:T", actions=[], decision="Allow"), "actions"),
            (StoredEntry(resource="Topic:T", actions=["Pub"], decision="Deny", source_ips=["x"]), "IP address"),
        ],
    )
    def test_a_damaged_entry_is_not_left_out(self, stored: StoredEntry, why: str) -> None:
        """An ignored entry may be one that denies."""
        with pytest.raises(BadAcl, match=why):
            Acls(StoredAcls(acls={"bob": StoredList(custom=[stored])}))

    def test_a_list_has_a_limit(self) -> None:
        many = [make_entry(f"Topic:T{i}", ["Pub"], "Allow", []) for i in range(ENTRIES_MAX + 1)]
        with pytest.raises(BadAcl, match="use prefixes"):
            Acls(None).merged("bob", {PolicyKind.CUSTOM: many})

    def test_a_list_ends_with_its_last_entry(self) -> None:
        acls = Acls(None)
        acls.put("bob", AccessList(custom=[make_entry("Topic:T", ["Pub"], "Allow", [])]))
        assert acls.without("bob", PolicyKind.DEFAULT, Resource.parse("Topic:T")) is not None
        assert acls.without("bob", None, Resource.parse("Topic:T")) is None
        assert acls.without("bob", None, None) is None
        assert acls.get("bob") is not None and acls.get("bob") == acls.all()["bob"]
        assert acls.all()["bob"].custom[0].decision is Decision.ALLOW


class TestFiles:
    def test_a_damaged_file_is_not_replaced_by_its_previous_version(self, disk: SimulatedDisk, tmp_path: Path) -> None:
        path = tmp_path / USERS_NAME
        path.with_name(USERS_NAME + ".bak").write_text("{}")
        assert load_strictly(disk, path, StoredUsers) is None
        for damaged in ("", "{", "[]", '{"users": 3}'):
            path.write_text(damaged)
            with pytest.raises(UnreadableAccess, match=r"users\.json.*removed since"):
                load_strictly(disk, path, StoredUsers)

    def test_a_follower_sees_changes_and_keeps_what_it_has_if_they_are_damaged(
        self, disk: SimulatedDisk, tmp_path: Path, key_file: KeyFile, users: Users
    ) -> None:
        following = FollowedAccess(disk, tmp_path, key_file.path)
        assert following.users.all() == [] and not following.refresh()
        users.put("bob", users.make("bob", SECRET))
        config_file.save(disk, tmp_path / USERS_NAME, users.content(), private=True)
        acls = Acls(None)
        acls.put("bob", AccessList(custom=[make_entry("Topic:T", ["Pub"], "Allow", [])]))
        config_file.save(disk, tmp_path / ACLS_NAME, acls.content())
        assert following.refresh()
        assert following.users.all() == users.all() and following.acls.all() == acls.all()
        assert (tmp_path / USERS_NAME).stat().st_mode & 0o777 == 0o600
        fresh = tmp_path / "fresh"
        fresh.write_text("{")
        os.replace(fresh, tmp_path / USERS_NAME)
        with pytest.raises(UnreadableAccess):
            following.refresh()
        assert following.users.all() == users.all()

    def test_a_follower_reads_again_after_a_failed_read(
        self, disk: SimulatedDisk, tmp_path: Path, key_file: KeyFile, users: Users
    ) -> None:
        """The key file comes after the users, which keep the identity that the failed read has seen."""
        following = FollowedAccess(disk, tmp_path, key_file.path)
        users.put("bob", users.make("bob", SECRET))
        config_file.save(disk, tmp_path / USERS_NAME, users.content(), private=True)
        acls = Acls(None)
        acls.put("bob", AccessList(custom=[make_entry("Topic:T", ["Pub"], "Allow", [])]))
        config_file.save(disk, tmp_path / ACLS_NAME, acls.content())
        away = key_file.path.rename(tmp_path / "away")
        with pytest.raises(KeyProblem):
            following.refresh()
        assert following.users.all() == [] and following.acls.all() == {}
        away.rename(key_file.path)
        assert following.refresh() and following.users.all() == users.all()
        assert not following.refresh()

    def test_a_follower_takes_no_users_with_a_damaged_list(
        self, disk: SimulatedDisk, tmp_path: Path, key_file: KeyFile, users: Users
    ) -> None:
        following = FollowedAccess(disk, tmp_path, key_file.path)
        users.put("bob", users.make("bob", SECRET))
        config_file.save(disk, tmp_path / USERS_NAME, users.content(), private=True)
        bad = StoredEntry("no resource", ["Pub"], "Allow")
        config_file.save(disk, tmp_path / ACLS_NAME, StoredAcls(acls={"bob": StoredList(custom=[bad])}))
        with pytest.raises(BadAcl):
            following.refresh()
        assert following.users.all() == [] and following.acls.all() == {}


class TestCredentials:
    def test_a_file_of_credentials_is_private(self, disk: SimulatedDisk, tmp_path: Path) -> None:
        path = tmp_path / "key.json"
        write_credentials(disk, path, AccessKey("bob", SECRET))
        assert path.stat().st_mode & 0o777 == 0o600
        found = read_credentials(disk, path)
        assert (found.name, found.secret) == ("bob", SECRET)
        path.chmod(0o644)
        with pytest.raises(BadCredentials, match="chmod 600"):
            read_credentials(disk, path)

    @pytest.mark.parametrize("content", ["", "{}", '{"accessKey":"bob"}', '{"accessKey":"","secretKey":"x"}', "SECRET"])
    def test_other_content_is_rejected_without_showing_it(
        self, disk: SimulatedDisk, tmp_path: Path, content: str
    ) -> None:
        path = tmp_path / "key.json"
        path.write_text(content)
        path.chmod(0o600)
        with pytest.raises(BadCredentials, match="its content is") as rejected:
            read_credentials(disk, path)
        assert content != "SECRET" or "SECRET is" not in str(rejected.value)
        with pytest.raises(BadCredentials, match="does not exist"):
            read_credentials(disk, tmp_path / "other.json")

    def test_the_key_of_the_pipeline_stays_the_same(self, disk: SimulatedDisk, tmp_path: Path) -> None:
        first = pipeline_key(disk, tmp_path)
        assert pipeline_key(disk, tmp_path) == first
        assert (tmp_path / PIPELINE_KEY_NAME).stat().st_mode & 0o777 == 0o600
        assert pipeline_key(disk, tmp_path / "another") != first
        (tmp_path / PIPELINE_KEY_NAME).chmod(0o666)
        with pytest.raises(BadCredentials, match="creates another one"):
            pipeline_key(disk, tmp_path)
