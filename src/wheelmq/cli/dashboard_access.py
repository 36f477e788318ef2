"""The broker of `wheelmq up`, as the dashboard uses it for the users who log in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from wheelmq.auth.audit import DONE, REJECTED, Audit
from wheelmq.dashboard.sessions import NoteLogin, Operation, UserRole
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.rpc_client import RpcClient
from wheelmq.system.clock import Clock
from wheelmq.system.rotating_file import RotatingFile
from wheelmq.system.tls_client import ClientTls

ANSWER_S: Final = 2.0
_DECIDED: Final = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION)
"""Answers that depend on the rights alone. A busy broker answers otherwise."""
_SETTINGS: Final = {
    Operation.STOP_RELEASES: b"timerStopDequeue=true\n",
    Operation.RESUME_RELEASES: b"timerStopDequeue=false\n",
}


Ask = Callable[[AccessKey, Command], Awaitable[Command]]
"""Send a request with the signature of a user, and return the answer. Raises CallError."""


class UserRequests:
    """The requests of users who are logged in at the dashboard."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def role_of(self, key: AccessKey) -> UserRole | None:
        """Return the role of the user. Raises CallError.

        No request asks for the rights of a user. So this sends one that needs Get and one that needs Update. Brokers
        do not serve the second, and say so only to a user with the right.
        """
        if not await self._may(key, RequestCode.GET_BROKER_RUNTIME_INFO):
            return None
        return UserRole.OPERATE if await self._may(key, RequestCode.BROKER_HEARTBEAT) else UserRole.READ

    async def _may(self, key: AccessKey, code: RequestCode) -> bool:
        answer = await self._ask(key, Command(code=code))
        if answer.code not in _DECIDED:
            raise CallError(f"it answers {answer.code}: {answer.remark}")
        return answer.code != ResponseCode.NO_PERMISSION

    async def operate(self, key: AccessKey, operation: Operation) -> None:
        """Send an operation. Raises CallError, Refused."""
        command = Command(code=RequestCode.UPDATE_BROKER_CONFIG, body=_SETTINGS[operation])
        answer = await self._ask(key, command)
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer)


def asks(address: str, tls: ClientTls | None = None) -> Ask:
    """Return the function that sends a request to the broker at `address`, each on a connection of its own."""

    async def ask(key: AccessKey, command: Command) -> Command:
        requests = RpcClient(address, sign=key.sign, tls=tls)
        try:
            return await requests.call(command, ANSWER_S)
        finally:
            await requests.close()

    return ask


class _NoMessages:
    """A login names no message."""

    cluster = ""

    def topic_at(self, position: int) -> str | None:
        return None


def login_notes(path: Path, clock: Clock) -> NoteLogin:
    """Return the function that writes logins into the audit log at `path`."""
    audit = Audit(RotatingFile(path), clock, _NoMessages())

    def note(event: str, user: str, address: str, succeeded: bool) -> None:
        audit.note_event(event, user, address, DONE if succeeded else REJECTED)

    return note
