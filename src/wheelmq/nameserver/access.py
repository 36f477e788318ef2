"""The check of each request of a name server, with the users and lists of a broker (docs/operations/access.md).

Apache's name server checks nothing. A stranger could then register a broker of his own under the name of another one,
and get its messages.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from wheelmq.auth.audit import DONE, FAILED, REJECTED, Audit
from wheelmq.auth.exposure import exposure_problem
from wheelmq.auth.files import FollowedAccess
from wheelmq.auth.gate import Gate, NoRight, Unauthenticated
from wheelmq.auth.inner_users import add_inner_user
from wheelmq.auth.settings import AuthSettings
from wheelmq.config.errors import ConfigError
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import ACCESS_KEY, AccessKey
from wheelmq.nameserver.settings import NameServerSettings
from wheelmq.net.server_connection import ServerConnection
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk
from wheelmq.system.rate_limited_log import RateLimitedLog
from wheelmq.system.rotating_file import RotatingFile

log = logging.getLogger(__name__)

LOOK_MS: Final = 1000
"""Time between two looks at the files of users and lists, which a broker changes."""


class _Here:
    """The facts of a name server that rights depend on."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster

    def topic_at(self, position: int) -> str | None:
        """Return None: a name server has no messages."""
        return None


class NameServerAccess:
    """Checks requests and writes the audit log."""

    def __init__(
        self, settings: NameServerSettings, *, disk: Disk, clock: Clock, access_key: AccessKey | None = None
    ) -> None:
        """Load users and lists. `access_key` is that of the processes of one `wheelmq up`.

        Raises ConfigError, also if other machines could reach the name server without users, and OSError.
        """
        auth = AuthSettings(
            authentication_enabled=settings.authentication_enabled,
            authorization_enabled=settings.authorization_enabled,
            allow_unauthenticated=settings.allow_unauthenticated,
            key_file=settings.auth_key_file,
        )
        self.is_on = settings.authentication_enabled
        self._followed: FollowedAccess | None = None
        self._gate: Gate | None = None
        self._clock, self._next_ms = clock, 0
        self._log = RateLimitedLog(log, clock.monotonic)
        here = _Here(settings.auth_cluster)
        auth.check()
        if self.is_on:
            folder = Path(settings.auth_folder)
            self._followed = FollowedAccess(disk, folder, auth.key_path(folder.parent))
            if access_key is not None:
                add_inner_user(self._followed.users, access_key)
            self._gate = Gate(auth, self._followed.users, self._followed.acls, here)
        has_users = self._followed is not None and bool(self._followed.users.all() or access_key)
        problem = exposure_problem("the name server", settings.listen_host, auth, has_users=has_users)
        if problem is not None:
            raise ConfigError(problem)
        self._audit = Audit(RotatingFile(Path(settings.audit_file)) if settings.audit_file else None, clock, here)

    def rejection(self, request: Command, connection: ServerConnection) -> Command | None:
        """Return the answer to a request that may not be served, or None. Raises BodyError."""
        if self._gate is None:
            return None
        try:
            self._gate.admit(request, connection)
        except (Unauthenticated, NoRight) as denied:
            if self._audit.concerns(request.code):
                claimed = f"{denied} (access key {request.ext.get(ACCESS_KEY, 'none')})"
                self._note(request, connection, REJECTED, ResponseCode.NO_PERMISSION, claimed)
            return Command(code=ResponseCode.NO_PERMISSION, remark=str(denied))
        return None

    def note(self, request: Command, connection: ServerConnection, answer: Command) -> None:
        """Write the line of a request of administration with its answer."""
        if self._audit.concerns(request.code):
            is_done = answer.code == ResponseCode.SUCCESS
            self._note(request, connection, DONE if is_done else FAILED, answer.code, answer.remark)

    def _note(
        self, request: Command, connection: ServerConnection, outcome: str, code: int, remark: str | None
    ) -> None:
        self._audit.note(
            request,
            user=connection.user,
            address=str(connection.peer),
            outcome=outcome,
            code=int(code),
            remark=remark,
        )

    def poll(self, monotonic_ms: int) -> None:
        """Read the files of users and lists again if they have changed."""
        if self._followed is None or monotonic_ms < self._next_ms:
            return
        self._next_ms = monotonic_ms + LOOK_MS
        try:
            if self._followed.refresh():
                log.info("users and access lists were read again")
        except (ConfigError, OSError) as error:
            self._log.warn("files", "the name server keeps its users and access lists: %s", error)

    def next_ms(self) -> int | None:
        """Return when the next look is due, or None without users."""
        return None if self._followed is None else self._next_ms
