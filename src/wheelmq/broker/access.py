"""The check of each request before its handler, and the audit log of administration.

With authentication off, only the requests of `Rule.is_always_checked` and those about users pass through it, and those
that the audit log has a line for. The others have no cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from wheelmq.auth.audit import DONE, FAILED, REJECTED, REMARK_CHARS_MAX, Audit, AuditSink
from wheelmq.auth.gate import Gate, NoRight, Pass, Unauthenticated
from wheelmq.auth.needs import PIPELINE_RIGHT, PUB_ACTIONS, topic_right
from wheelmq.auth.rules import LONG_POLLS, RULES
from wheelmq.broker.answers import Answer, Deferred, Given, Known, PeerError, when_known
from wheelmq.broker.connection import Connection, peer_text
from wheelmq.broker.message_topics import MessageTopics
from wheelmq.broker.request import Request
from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.state.access_tables import AccessTables
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import ACCESS_KEY
from wheelmq.system.clock import Clock


class AccessControl:
    """Checks requests and writes the audit log."""

    def __init__(
        self,
        settings: BrokerSettings,
        tables: AccessTables,
        here: MessageTopics,
        clock: Clock,
        counts: Counter[str],
        sink: AuditSink | None,
    ) -> None:
        self.tables = tables
        self.gate = Gate(settings.auth, tables.users, tables.acls, here)
        self.audit = Audit(sink, clock, here)
        self.is_on = settings.auth.authentication_enabled
        self._counts = counts
        self._concerned = frozenset(code for code in RULES if self.gate.watches(code) or self.audit.concerns(code))

    def concerns(self, code: int) -> bool:
        """Return whether requests of this code are checked or have a line in the audit log."""
        return self.is_on or code in self._concerned

    def serve(self, request: Request, handle: Callable[[], Answer]) -> Answer:
        """Check a request, and return the answer of `handle`. Raises PeerError, BodyError, and what `handle` raises."""
        command, connection = request.command, request.connection
        is_audited = self.audit.concerns(command.code)
        passed: Pass | None = None
        if self.gate.watches(command.code):
            passed = self._admit(command, connection, is_audited=is_audited)
        if is_audited:
            return self._serve_audited(request, handle)
        answer = handle()
        if passed is not None and self.is_on and command.code in LONG_POLLS and isinstance(answer, Deferred):
            return self._rechecked(answer, passed)
        return answer

    def allows_send(self, command: Command, connection: Connection) -> bool:
        """Return whether a send may be served, for the kernel. The plain code answers a send that may not."""
        try:
            self.gate.admit(command, connection)
        except (Unauthenticated, NoRight):
            return False
        return True

    def may_check_transaction(self, connection: Connection, topic: str) -> bool:
        """Return whether a producer may see the half messages of `topic`: it needs the right to send there."""
        right = topic_right(topic, PUB_ACTIONS)
        return self.gate.may(connection.user, right, connection.peer)

    def pipeline_check(self, connection: Connection) -> Callable[[], None]:
        """Return a function that raises PeerError once the user of this request may not have the lease any more."""
        user, address = connection.user, connection.peer.address

        def check() -> None:
            try:
                self.gate.check_right(user, PIPELINE_RIGHT, address)
            except (Unauthenticated, NoRight) as denied:
                raise _no_permission(denied) from None

        return check

    def _admit(self, command: Command, connection: Connection, *, is_audited: bool) -> Pass:
        """Check a request. Raises PeerError, BodyError."""
        try:
            return self.gate.admit(command, connection)
        except (Unauthenticated, NoRight) as denied:
            self._counts["unauthenticated" if isinstance(denied, Unauthenticated) else "forbidden"] += 1
            if is_audited:
                claimed = f" (access key {command.ext.get(ACCESS_KEY, 'none')})"
                self._note(
                    command,
                    connection,
                    REJECTED,
                    ResponseCode.NO_PERMISSION,
                    f"{denied}{claimed}"[:REMARK_CHARS_MAX],
                    connection.user,
                )
            raise _no_permission(denied) from None

    def _serve_audited(self, request: Request, handle: Callable[[], Answer]) -> Answer:
        command, connection = request.command, request.connection
        user = connection.user

        def note(known: Known) -> Command | None:
            match known:
                case PeerError():
                    self._note(command, connection, FAILED, known.code, known.remark, user)
                case Exception():
                    self._note(command, connection, FAILED, ResponseCode.SYSTEM_ERROR, str(known), user)
                case Command(code=ResponseCode.SUCCESS) | None:
                    self._note(command, connection, DONE, user=user)
                case _:
                    self._note(command, connection, FAILED, known.code, known.remark, user)
            if isinstance(known, Exception):
                raise known
            return known

        given: Given
        try:
            given = handle()
        except Exception as error:
            given = error
        return when_known(given, note)

    def _note(
        self,
        command: Command,
        connection: Connection,
        outcome: str,
        code: int = 0,
        remark: str | None = None,
        user: str | None = None,
    ) -> None:
        self.audit.note(
            command, user=user, address=peer_text(connection), outcome=outcome, code=int(code), remark=remark
        )

    def _rechecked(self, answer: Deferred, passed: Pass) -> Deferred:
        """Return a held answer that leaves only if its user still has its rights then."""

        def check(given: Given) -> Answer:
            if isinstance(given, Exception):
                raise given
            try:
                self.gate.recheck(passed)
            except (Unauthenticated, NoRight) as denied:
                self._counts["forbidden"] += 1
                raise _no_permission(denied) from None
            return given

        checked = answer.then(check)
        checked.is_accepted = answer.is_accepted
        return checked


def _no_permission(denied: Exception) -> PeerError:
    return PeerError(ResponseCode.NO_PERMISSION, str(denied))
