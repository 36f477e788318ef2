"""Logins to the dashboard of a broker with users. The broker decides who may log in, and with which role.

A user of the broker logs in with the own name and secret. The dashboard keeps the secret in memory until the session
ends, because it signs the requests of this user. So the broker checks every operation, and its audit log names the
user.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from wheelmq.formats.wire.signature import AccessKey
from wheelmq.net.errors import CallError, Refused
from wheelmq.system.attempt_limit import AttemptLimit
from wheelmq.system.clock import Clock
from wheelmq.system.secure_random import secure_token

IDLE_S: Final = 1800.0
"""Seconds without a request after which a session ends."""
SESSION_S: Final = 12 * 3600.0
CHECK_S: Final = 10.0
"""Seconds after which the broker is asked again whether a user still has its role."""
SESSIONS_MAX: Final = 100
"""Simultaneous sessions. The oldest one ends if there are more."""


class UserRole(StrEnum):
    READ = "read"
    """May see the figures: the right Get on the cluster."""
    OPERATE = "operate"
    """May also operate the broker: the right Update on the cluster."""


class Operation(StrEnum):
    """The operations of the page."""

    STOP_RELEASES = "stop-releases"
    RESUME_RELEASES = "resume-releases"


class BrokerAccess(Protocol):
    """The broker, as the dashboard uses it for a user."""

    async def role_of(self, key: AccessKey) -> UserRole | None:
        """Return the role of the user of `key`, or None if the key is wrong or has no role. Raises CallError."""
        ...

    async def operate(self, key: AccessKey, operation: Operation) -> None:
        """Send an operation with the signature of `key`. Raises CallError, Refused."""
        ...


NoteLogin = Callable[[str, str, str, bool], None]
"""Called with the event, the name of the user, the address, and whether it succeeded."""


class LoginRejected(Exception):
    """The login is rejected. The text is for the page."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class UserSession:
    """The login of one user."""

    key: AccessKey
    role: UserRole
    form_token: str
    """Each form of the session has it, so that no foreign page can send one."""
    began_s: float
    used_s: float
    checked_s: float

    def owns(self, form_token: str) -> bool:
        return hmac.compare_digest(form_token.encode("utf-8", "replace"), self.form_token.encode())


class Sessions:
    """The sessions by the digest of their cookie."""

    def __init__(self, broker: BrokerAccess, clock: Clock, note: NoteLogin) -> None:
        self._broker = broker
        self._now_s = clock.monotonic
        self._note = note
        self._limit = AttemptLimit(clock.monotonic)
        self._table: dict[bytes, UserSession] = {}
        self._admitted: dict[bytes, float] = {}
        """The time of the last check of each user that sends its secret with each request."""

    async def log_in(self, name: str, secret: str, address: str) -> str:
        """Begin a session. Returns the value of its cookie. Raises LoginRejected."""
        role = await self._check_secret(name, secret, address, is_known=False)
        return self._begin(AccessKey(name, secret), role)

    async def admit(self, name: str, secret: str, address: str) -> None:
        """Check a user that sends its secret with each request, without a session. Raises LoginRejected.

        The broker is asked at most every CHECK_S seconds. The audit log notes the first success and each failure.
        """
        place = _digest(f"{len(name)} {name} {secret}")
        checked_s = self._admitted.get(place)
        if checked_s is not None and self._now_s() - checked_s < CHECK_S:
            return
        self._admitted.pop(place, None)
        await self._check_secret(name, secret, address, is_known=checked_s is not None)
        if len(self._admitted) >= SESSIONS_MAX:
            del self._admitted[next(iter(self._admitted))]
        self._admitted[place] = self._now_s()

    async def _check_secret(self, name: str, secret: str, address: str, *, is_known: bool) -> UserRole:
        """Return the role of a user. `is_known` says that the last check succeeded. Raises LoginRejected."""
        if not name or not secret:
            raise LoginRejected(400, "Enter the name and the secret of a user.")
        attempt = f"{address} {name[:128]}"
        wait_s = self._limit.wait_s(attempt)
        if wait_s:
            self._note("DASHBOARD_LOGIN", name, address, False)
            raise LoginRejected(429, f"Too many failures: try again in {int(wait_s) + 1} s.")
        self._limit.note_failure(attempt)  # until the broker answers, so that attempts at once count too
        key = AccessKey(name, secret)
        try:
            role = await self._broker.role_of(key)
        except CallError as error:
            self._limit.note_success(attempt)
            raise LoginRejected(503, f"The broker does not answer: {error}") from None
        if role is None or not is_known:
            self._note("DASHBOARD_LOGIN", name, address, role is not None)
        if role is None:
            raise LoginRejected(403, "Wrong name or secret, or no right to read this cluster.")
        self._limit.note_success(attempt)
        return role

    def _begin(self, key: AccessKey, role: UserRole) -> str:
        cookie, now_s = secure_token(), self._now_s()
        if len(self._table) >= SESSIONS_MAX:
            del self._table[next(iter(self._table))]
        self._table[_digest(cookie)] = UserSession(key, role, secure_token(), now_s, now_s, now_s)
        return cookie

    async def find(self, cookie: str) -> UserSession | None:
        """Return the session of a cookie, if it has not ended and its user still has a role."""
        place = _digest(cookie)
        session, now_s = self._table.get(place), self._now_s()
        if session is None:
            return None
        if now_s - session.used_s >= IDLE_S or now_s - session.began_s >= SESSION_S:
            del self._table[place]
            return None
        session.used_s = now_s
        if now_s - session.checked_s >= CHECK_S and not await self._check(session):
            self._table.pop(place, None)
            return None
        return session

    async def _check(self, session: UserSession) -> bool:
        """Ask the broker for the present role. While the broker is away, the former one counts."""
        try:
            role = await self._broker.role_of(session.key)
        except CallError:
            return True
        session.checked_s = self._now_s()
        if role is None:
            return False
        session.role = role
        return True

    async def operate(self, session: UserSession, operation: Operation) -> str:
        """Send an operation of the session's user. Returns the result for the page."""
        try:
            await self._broker.operate(session.key, operation)
        except (CallError, Refused) as error:
            return f"The broker did not do it: {error}"
        return "Done."

    def log_out(self, cookie: str) -> None:
        """End a session."""
        self._table.pop(_digest(cookie), None)


def _digest(cookie: str) -> bytes:
    """A look-up by digest takes no time that tells how much of a cookie was guessed."""
    return hashlib.sha256(cookie.encode("utf-8", "replace")).digest()
