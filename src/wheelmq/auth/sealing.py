"""Encryption of the secrets of users at rest: AES-256-GCM under a key that the store does not hold.

A signature needs the secret itself, so a hash is not enough. A sealed secret belongs to the name of its user: under
another name it cannot be opened.

    sealed = base64( nonce 12 | ciphertext | tag 16 )
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path
from typing import Final

from wheelmq.config.errors import ConfigError
from wheelmq.system.disk import Disk
from wheelmq.system.secure_random import secure_bytes

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_PURPOSE: Final = b"wheelmq user\0"


class KeyProblem(ConfigError):
    """The key file or a sealed secret is not usable. The text names the remedy."""


class Sealer:
    """Seals secrets under one key."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # only a broker with users loads it

        assert len(key) == KEY_BYTES
        self._cipher = AESGCM(key)
        self.key_id = hashlib.sha256(b"wheelmq key id\0" + key).hexdigest()[:16]
        """Identifies the key without revealing it."""

    def seal(self, name: str, secret: str) -> str:
        """Return `secret`, encrypted for the user `name`."""
        nonce = secure_bytes(_NONCE_BYTES)
        raw = self._cipher.encrypt(nonce, secret.encode(), _PURPOSE + name.encode())
        return base64.b64encode(nonce + raw).decode()

    def open(self, name: str, sealed: str) -> str:
        """Return the secret of the user `name`. Raises KeyProblem if it was sealed otherwise, or has changed."""
        from cryptography.exceptions import InvalidTag

        try:
            raw = base64.b64decode(sealed, validate=True)
            return self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], _PURPOSE + name.encode()).decode()
        except (InvalidTag, binascii.Error, ValueError):
            raise KeyProblem(
                f"the secret of the user {name!r} was not encrypted with this key, or has changed since"
            ) from None


class KeyFile:
    """The file with the key: 64 hex digits, readable for its owner only. It is created with the first user."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._disk = disk
        self._sealer: Sealer | None = None

    def sealer(self, *, create: bool) -> Sealer:
        """Return the sealer of the key. With `create`, a missing file is created. Raises KeyProblem, OSError."""
        if self._sealer is None:
            raw = self._disk.read(self.path)
            if raw is None and not create:
                raise KeyProblem(
                    f"{self.path} is missing: it is the key that encrypts the secrets of the users. Restore it from a "
                    "backup, or name its place with auth_key_file. Without it, remove users.json and create the "
                    "users again"
                )
            if raw is None:
                raw = secure_bytes(KEY_BYTES).hex().encode() + b"\n"
                self._disk.replace(self.path, raw, private=True)
            self._sealer = Sealer(self._key(raw))
        return self._sealer

    def _key(self, raw: bytes) -> bytes:
        if self._disk.is_shared(self.path):
            raise KeyProblem(f"{self.path} can be read by other users of this machine: `chmod 600 {self.path}`")
        try:
            key = bytes.fromhex(raw.decode("ascii").strip())
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise KeyProblem(f"{self.path} does not hold a key of {2 * KEY_BYTES} hex digits: restore it from a backup")
        return key
