"""The check of each request: the signature of its user, then the rights of that user (RocketMQ: AuthenticationPipeline,
AuthorizationPipeline).

Each signature is verified, because each covers another request. Decisions of access lists are kept by user, resource,
actions and address, until a user or a list changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from wheelmq.auth.acls import Acls
from wheelmq.auth.needs import Right, Surroundings
from wheelmq.auth.policies import Decision
from wheelmq.auth.rules import Rule, rule_of
from wheelmq.auth.settings import AuthSettings
from wheelmq.auth.users import User, Users
from wheelmq.formats.disk.message import Host
from wheelmq.formats.hosts import ip_text, is_loopback
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import ACCESS_KEY, is_signed_with

VERDICTS_MAX: Final = 100_000
"""Kept decisions of access lists."""
_NOBODYS_SECRET: Final = b"a request of an unknown user takes as long as one with a wrong signature"


class Unauthenticated(Exception):
    """The request has no valid signature of an enabled user. The text is the remark of the answer."""


class NoRight(Exception):
    """The user does not have a right that the request needs. The text is the remark of the answer."""


AccessDenied = Unauthenticated | NoRight


class Caller(Protocol):
    """A connection, as the gate sees it."""

    peer: Host
    user: str | None
    """The user who signed the last request of the connection."""


class Pass(NamedTuple):
    """A request that passed, for another check of its rights later."""

    user: str | None
    rights: tuple[Right, ...]
    address: str
    version: int


class Gate:
    """Checks requests by the users and lists of one server."""

    def __init__(self, settings: AuthSettings, users: Users, acls: Acls, here: Surroundings) -> None:
        self._settings = settings
        self._users = users
        self._acls = acls
        self._here = here
        self._verdicts: dict[tuple[str, Right, str], Decision | None] = {}
        self._verdicts_of = (-1, -1)
        self._unsigned = settings.codes_without_signature
        self._unlisted = settings.codes_without_rights

    def watches(self, code: int) -> bool:
        """Return whether requests of this code are checked."""
        rule = rule_of(code)
        return self._settings.authentication_enabled or rule.is_always_checked or rule.is_local_without_users

    def admit(self, command: Command, caller: Caller) -> Pass:
        """Check a request. Raises Unauthenticated, NoRight, and BodyError if the body names resources and does not
        parse."""
        rule, address = rule_of(command.code), ip_text(caller.peer.address)
        if rule.is_local_without_users and not self._settings.authentication_enabled and not is_loopback(address):
            raise NoRight(
                "authentication is off, so only this machine may send requests about users. Set "
                "authentication_enabled=true, or send the request from the machine of the broker"
            )
        version = self.version
        caller.user = None
        if rule.by_lease:
            return Pass(None, (), address, version)
        user = self._authenticate(command) if self._must_authenticate(command, rule) else None
        caller.user = None if user is None else user.name
        if not self._needs_rights(command.code, rule):
            return Pass(caller.user, (), address, version)
        rights = tuple(right for need in rule.needs for right in need.rights(command, self._here))
        self._authorize(user, rights, address)
        return Pass(caller.user, rights, address, version)

    def recheck(self, passed: Pass) -> None:
        """Check the rights of a held request again, if users or lists have changed. Raises Unauthenticated,
        NoRight."""
        if passed.version != self.version and passed.user is not None:
            self._authorize(self._enabled(passed.user), passed.rights, passed.address)

    def check_right(self, user: str | None, right: Right, address: bytes) -> None:
        """Check that a user still exists and has a right. Raises Unauthenticated, NoRight."""
        self._authorize(None if user is None else self._enabled(user), (right,), ip_text(address))

    def may(self, user: str | None, right: Right, peer: Host) -> bool:
        """Return whether a user of a connection has one right. Everyone has each right while no rights are checked."""
        if not self._settings.authorization_enabled:
            return True
        try:
            self.check_right(user, right, peer.address)
        except (Unauthenticated, NoRight):
            return False
        return True

    @property
    def version(self) -> int:
        """Changes of users and lists."""
        return self._users.version + self._acls.version

    def _enabled(self, name: str) -> User:
        user = self._users.find(name)
        if user is None or not user.is_enabled:
            raise Unauthenticated(f"User:{name} is disabled or deleted.")
        return user

    def _must_authenticate(self, command: Command, rule: Rule) -> bool:
        if rule.is_always_checked:
            return True
        if self._settings.authentication_enabled:
            return ACCESS_KEY in command.ext or command.code not in self._unsigned
        return False

    def _needs_rights(self, code: int, rule: Rule) -> bool:
        if rule.is_always_checked:
            return True
        return self._settings.authorization_enabled and code not in self._unlisted

    def _authenticate(self, command: Command) -> User:
        name = command.ext.get(ACCESS_KEY, "")
        if not name:
            raise Unauthenticated("username cannot be null.")
        user = self._users.find(name)
        is_valid = is_signed_with(_NOBODYS_SECRET if user is None else user.secret.encode(), command)
        if user is None or not is_valid:
            raise Unauthenticated("check signature failed.")
        if not user.is_enabled:
            raise Unauthenticated(f"User:{name} is disabled.")
        return user

    def _authorize(self, user: User | None, rights: Iterable[Right], address: str) -> None:
        """Raise NoRight unless the user has each of the rights. A super user has all."""
        if user is not None and user.is_super:
            return
        for right in rights:
            verdict = None if user is None else self._verdict(user.name, right, address)
            if verdict is not Decision.ALLOW:
                why = "the decision is deny." if verdict is Decision.DENY else "no matched policies."
                name = "nobody" if user is None else user.name
                what = right.resource.text[:200]
                raise NoRight(f"User:{name} has no permission to access {what} from {address}, {why}")

    def _verdict(self, name: str, right: Right, address: str) -> Decision | None:
        version = self._users.version, self._acls.version
        if version != self._verdicts_of or len(self._verdicts) >= VERDICTS_MAX:
            self._verdicts.clear()
            self._verdicts_of = version
        key = name, right, address
        try:
            return self._verdicts[key]
        except KeyError:
            own = self._users.built_in_list(name) or self._acls.get(name)
            found = None if own is None else own.decide(right.resource, right.actions, address)
            self._verdicts[key] = found
            return found
