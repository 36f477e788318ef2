"""Files with secrets, which only their owner may read: an access key as JSON, or a token alone.

{"accessKey": "...", "secretKey": "..."}
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from wheelmq.config.errors import ConfigError
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.system.disk import Disk

TOKEN_CHARS_MIN: Final = 16


class BadCredentials(ConfigError):
    """The file is not usable. The text names the remedy, and no secret."""


class _Credentials(msgspec.Struct, rename="camel"):
    access_key: str
    secret_key: str
    security_token: str | None = None


def read_credentials(disk: Disk, path: Path) -> AccessKey:
    """Return the access key in the file. Raises BadCredentials, OSError."""
    raw = _read_private(disk, path)
    try:
        found = msgspec.json.decode(raw, type=_Credentials)
        return AccessKey(found.access_key, found.secret_key, found.security_token)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
        form = '{"accessKey": "NAME", "secretKey": "SECRET"}'
        raise BadCredentials(f"{path} is no file of credentials: its content is {form}") from None


def write_credentials(disk: Disk, path: Path, key: AccessKey) -> None:
    """Write a file that only its owner can read. Raises OSError."""
    disk.replace(path, msgspec.json.encode(_Credentials(key.name, key.secret, key.token)) + b"\n", private=True)


def read_token(disk: Disk, path: Path) -> str:
    """Return the token in the file. Raises BadCredentials, OSError."""
    text = _read_private(disk, path).decode("ascii", "replace").strip()
    if len(text) < TOKEN_CHARS_MIN or not text.isprintable() or " " in text or not text.isascii():
        raise BadCredentials(
            f"{path} holds no token: write {TOKEN_CHARS_MIN} or more characters without blanks into it"
        )
    return text


def _read_private(disk: Disk, path: Path) -> bytes:
    raw = disk.read(path)
    if raw is None:
        raise BadCredentials(f"{path} does not exist")
    if disk.is_shared(path):
        raise BadCredentials(f"{path} can be read by other users of this machine: `chmod 600 {path}`")
    return raw
