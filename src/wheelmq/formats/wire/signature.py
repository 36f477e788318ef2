"""The signature of a request (RocketMQ: AclClientRPCHook, DefaultAuthenticationContextBuilder).

The signed content is the values of all header fields, in the order of the fields' names, and then the body. So the
signature covers neither the request code nor the names of the fields, and it holds for any connection and any time
(docs/adr/0031-users-and-access-lists.md).
"""

from __future__ import annotations

import base64
import hmac
from typing import Final

import msgspec

from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import UNIQUE_KEY_QUERY

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
VERSION_SIGNS_QUERY_FLAG: Final = 400
"""Clients below this version, up to V4_9_3, leave the field `_UNIQUE_KEY_QUERY` out of the signed content."""


def signed_content(command: Command) -> bytes:
    """Return the content that the signature of `command` covers."""
    fields = command.ext
    left_out = (SIGNATURE,) if command.version >= VERSION_SIGNS_QUERY_FLAG else (SIGNATURE, UNIQUE_KEY_QUERY)
    text = "".join([fields[name] for name in sorted(fields) if name not in left_out])
    return text.encode("utf-8", "replace") + bytes(command.body)


def signature_of(secret: bytes, command: Command) -> str:
    """Return the signature of `command`: base64 of HMAC-SHA1 over its signed content."""
    return base64.b64encode(hmac.digest(secret, signed_content(command), "sha1")).decode()


def is_signed_with(secret: bytes, command: Command) -> bool:
    """Return whether `command` has the signature that `secret` gives. Takes the same time for each wrong one."""
    found = command.ext.get(SIGNATURE, "").encode("utf-8", "replace")
    return hmac.compare_digest(signature_of(secret, command).encode(), found)


class AccessKey(msgspec.Struct, frozen=True):
    """The name of a sender and its secret, which only the owner and the servers know.
    `repr` leaves the secret out."""

    name: str
    secret: str
    token: str | None = None
    """The security token of temporary credentials."""

    def __post_init__(self) -> None:
        if not self.name or not self.secret:
            raise ValueError("an access key has a name and a secret")

    def __repr__(self) -> str:
        return f"AccessKey(name={self.name!r})"

    def sign(self, command: Command) -> None:
        """Add the name and the signature."""
        fields = command.ext
        fields[ACCESS_KEY] = self.name
        if self.token is not None:
            fields[SECURITY_TOKEN] = self.token
        fields.pop(SIGNATURE, None)
        fields[SIGNATURE] = signature_of(self.secret.encode(), command)
