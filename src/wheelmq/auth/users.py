"""Users: a name, a secret, a kind and a status (RocketMQ: rocketmq-auth, User). config/users.json stores them."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

import msgspec

from wheelmq.auth.policies import AccessList
from wheelmq.auth.sealing import KeyFile, KeyProblem
from wheelmq.formats.wire.bodies import Body

NAME_CHARS_MAX: Final = 128
SECRET_CHARS_MIN: Final = 6
"""The shortest secret that the access lists of RocketMQ 4 accept."""
SECRET_CHARS_MAX: Final = 512
USERS_MAX: Final = 10_000
_NAME: Final = re.compile(r"[!-9;-~]+")
"""Printable ASCII without blanks, and without the colon that ends the kind of a subject."""


class UserKind(StrEnum):
    SUPER = "Super"
    """May do everything, without access lists."""
    NORMAL = "Normal"


class UserStatus(StrEnum):
    ENABLE = "enable"
    DISABLE = "disable"


class BadUser(ValueError):
    """A user cannot be created or changed like this."""


class User(msgspec.Struct, frozen=True):
    """A user. `repr` leaves the secret out."""

    name: str
    secret: str
    kind: UserKind = UserKind.NORMAL
    status: UserStatus = UserStatus.ENABLE
    sealed: str = ""
    """The encrypted secret, as the file has it. Empty for a user that no file has."""

    def __repr__(self) -> str:
        return f"User(name={self.name!r}, kind={self.kind}, status={self.status})"

    @property
    def is_super(self) -> bool:
        return self.kind is UserKind.SUPER

    @property
    def is_enabled(self) -> bool:
        return self.status is UserStatus.ENABLE


class StoredUser(Body):
    """A user in users.json."""

    user_type: str = UserKind.NORMAL
    user_status: str = UserStatus.ENABLE
    sealed_secret: str = ""


class StoredUsers(Body):
    """users.json."""

    key_id: str = ""
    """Identifies the key that encrypts the secrets."""
    users: dict[str, StoredUser] = {}


class Users:
    """The stored users by name, and in-memory users that the process itself knows."""

    def __init__(self, key_file: KeyFile, stored: StoredUsers | None) -> None:
        """Decrypt the secrets of the stored users. Raises KeyProblem, OSError."""
        self.version = 0
        """Counts changes."""
        self._key_file = key_file
        self._table: dict[str, User] = {}
        self._built_in: dict[str, User] = {}
        self._built_in_lists: dict[str, AccessList] = {}
        self.replace_all(stored or StoredUsers())

    def replace_all(self, stored: StoredUsers) -> None:
        """Load the stored users again, or none of them. Raises KeyProblem, OSError."""
        self.version += 1
        if not stored.users:
            self._table = {}
            return
        sealer = self._key_file.sealer(create=False)
        if stored.key_id and stored.key_id != sealer.key_id:
            raise KeyProblem(
                f"users.json was written with another key than {self._key_file.path}: restore the file of that key, "
                "or name its place with auth_key_file"
            )
        self._table = {
            name: User(name, sealer.open(name, one.sealed_secret), *_facts(name, one), one.sealed_secret)
            for name, one in stored.users.items()
        }

    def add_built_in(self, user: User, rights: AccessList | None = None) -> None:
        """Add a user that no file stores and no request lists. It hides a stored user of the same name."""
        self._built_in[user.name] = user
        self._built_in_lists[user.name] = rights or AccessList()

    def built_in_list(self, name: str) -> AccessList | None:
        """Return the access list of a built-in user."""
        return self._built_in_lists.get(name)

    def find(self, name: str) -> User | None:
        """Return the user of an access key."""
        return self._built_in.get(name) or self._table.get(name)

    def get(self, name: str) -> User | None:
        """Return a stored user."""
        return self._table.get(name)

    def all(self) -> list[User]:
        """Return the stored users, by name."""
        return [self._table[name] for name in sorted(self._table)]

    def make(
        self,
        name: str,
        secret: str | None = None,
        kind: UserKind | None = None,
        status: UserStatus | None = None,
    ) -> User:
        """Return a new user, or a changed one with its other facts as they were. Does not store it.

        Raises BadUser, KeyProblem, OSError.
        """
        known = self._table.get(name)
        if known is None:
            check_name(name)
            if name in self._built_in:
                raise BadUser(f"the name {name} belongs to the broker itself: choose another one")
            if len(self._table) >= USERS_MAX:
                raise BadUser(f"there are {USERS_MAX} users already")
        if secret is not None:
            check_secret(secret)
        elif known is None:
            raise BadUser("password can not be blank")
        old = known or User(name, "")
        return User(
            name,
            old.secret if secret is None else secret,
            old.kind if kind is None else kind,
            old.status if status is None else status,
            old.sealed if secret is None else self._key_file.sealer(create=True).seal(name, secret),
        )

    def put(self, name: str, user: User | None) -> None:
        """Store a user; None removes it."""
        self.version += 1
        if user is None:
            self._table.pop(name, None)
        else:
            self._table[name] = user

    def content(self) -> StoredUsers:
        """Return the content of users.json."""
        if not self._table:
            return StoredUsers()
        users = {
            name: StoredUser(user_type=user.kind, user_status=user.status, sealed_secret=user.sealed)
            for name, user in sorted(self._table.items())
        }
        return StoredUsers(key_id=self._key_file.sealer(create=True).key_id, users=users)


def _facts(name: str, one: StoredUser) -> tuple[UserKind, UserStatus]:
    try:
        return UserKind(one.user_type), UserStatus(one.user_status)
    except ValueError as error:
        raise KeyProblem(f"the user {name!r} in users.json: {error}") from None


def check_name(name: str) -> None:
    """Raise BadUser if `name` cannot be the name of a user."""
    if not _NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
        raise BadUser(
            f"{name[:200]!r} is no name: 1 to {NAME_CHARS_MAX} printable ASCII characters, without blanks and colons"
        )


def check_secret(secret: str) -> None:
    """Raise BadUser if `secret` cannot be the secret of a user. The text does not contain it."""
    if not secret.strip():
        raise BadUser("password can not be blank")
    if not SECRET_CHARS_MIN <= len(secret) <= SECRET_CHARS_MAX or not secret.isprintable():
        raise BadUser(f"a password has {SECRET_CHARS_MIN} to {SECRET_CHARS_MAX} printable characters")
