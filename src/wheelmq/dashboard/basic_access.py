"""Basic authentication, for programs such as Prometheus: each request has the name and the secret of a user."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from wheelmq.dashboard.sessions import LoginRejected, Sessions

CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="WheelMQ", charset="UTF-8"'}


class BasicAccess:
    """Checks requests with basic authentication."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def rejection(self, request: Request) -> Response | None:
        """Return the answer to a request that no user with a role sent; None if one did."""
        credentials = _credentials_of(request)
        if credentials is None:
            text = "This page needs a login, or the name and the secret of a user by basic authentication.\n"
            return PlainTextResponse(text, 401, CHALLENGE)
        address = request.client.host if request.client is not None else ""
        try:
            await self._sessions.admit(*credentials, address)
        except LoginRejected as rejected:
            is_wrong = rejected.status in (400, 403)
            status, headers = (401, CHALLENGE) if is_wrong else (rejected.status, {})
            return PlainTextResponse(f"{rejected}\n", status, headers)
        return None


def _credentials_of(request: Request) -> tuple[str, str] | None:
    """Return the name and the secret in the header of a request; None without them."""
    headers = request.headers.getlist("authorization")
    scheme, _, encoded = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, secret = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (name, secret) if colon else None
