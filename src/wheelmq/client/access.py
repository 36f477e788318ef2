"""Signs requests with an access key, for brokers with access control (RocketMQ: AclClientRPCHook)."""

from __future__ import annotations

import base64
import hmac
from typing import Final

import msgspec

from wheelmq.formats.wire.frame import Command

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"


class AccessKey(msgspec.Struct, frozen=True):
    """The name of a sender and its secret, which only the owner and the servers know. `repr` omits the secret."""

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
        """Add the name and the signature: base64 of the HMAC-SHA1 over all header fields and the body."""
        fields = command.ext
        fields[ACCESS_KEY] = self.name
        if self.token is not None:
            fields[SECURITY_TOKEN] = self.token
        fields.pop(SIGNATURE, None)
        content = "".join(fields[name] for name in sorted(fields)).encode() + bytes(command.body)
        fields[SIGNATURE] = base64.b64encode(hmac.digest(self.secret.encode(), content, "sha1")).decode()
