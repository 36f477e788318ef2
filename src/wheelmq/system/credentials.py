"""The access key in the environment of a process: only its owner can read it there, unlike a command line."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final

from wheelmq.formats.wire.signature import AccessKey

ACCESS_KEY_VARIABLE: Final = "WHEELMQ_ACCESS_KEY"
SECRET_KEY_VARIABLE: Final = "WHEELMQ_SECRET_KEY"
CREDENTIALS_VARIABLE: Final = "WHEELMQ_CREDENTIALS"
"""The path of a file with an access key."""
SECRET_VARIABLES: Final = frozenset((ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE, CREDENTIALS_VARIABLE))
"""Variables that no other process may inherit by chance."""


class HalfCredentials(ValueError):
    """Only one of the two variables is set. The text names the other one."""


def access_key_in(environ: MutableMapping[str, str]) -> AccessKey | None:
    """Return the access key in `environ`, or None if there is none. Raises HalfCredentials."""
    name, secret = environ.get(ACCESS_KEY_VARIABLE, ""), environ.get(SECRET_KEY_VARIABLE, "")
    if bool(name) != bool(secret):
        missing = SECRET_KEY_VARIABLE if name else ACCESS_KEY_VARIABLE
        raise HalfCredentials(f"{missing} is not set: an access key has a name and a secret")
    return AccessKey(name, secret) if name else None


def take_access_key(environ: MutableMapping[str, str]) -> AccessKey | None:
    """Do the same, and remove the variables, so that no child process inherits them."""
    try:
        return access_key_in(environ)
    finally:
        for variable in SECRET_VARIABLES:
            environ.pop(variable, None)


def variables_of(key: AccessKey | None) -> dict[str, str]:
    """Return the variables that give `key` to a child process."""
    return {} if key is None else {ACCESS_KEY_VARIABLE: key.name, SECRET_KEY_VARIABLE: key.secret}
