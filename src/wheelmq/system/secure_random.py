"""Random bytes that cannot be guessed, from the operating system. Tokens and keys come from here only.

The randomness that tests replay (`random.Random`) must never create one: its next numbers follow from earlier ones.
"""

from __future__ import annotations

import secrets


def secure_bytes(count: int) -> bytes:
    """Return `count` random bytes."""
    return secrets.token_bytes(count)


def secure_token() -> str:
    """Return a random text of 256 bits, for headers, cookies and environment variables."""
    return secrets.token_urlsafe(32)
