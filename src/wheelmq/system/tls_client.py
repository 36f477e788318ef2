"""TLS of a client: the options that users choose, and the contexts that connections share."""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from wheelmq.system.tls import (
    FileState,
    ServerCheck,
    TlsVersion,
    choose_ciphers,
    file_states,
    load_authorities,
    load_pair,
)

if TYPE_CHECKING:
    from typing_extensions import Self

FileName = str | os.PathLike[str]
_FILES: Final = ("ca_file", "certificate_file", "key_file", "key_password_file")


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a client connects with TLS. By default it trusts the authorities of the system, and checks names."""

    ca_file: FileName | None = None
    """A PEM file with the certificates to trust instead of the system's authorities."""
    verify: ServerCheck = ServerCheck.FULL
    """How the certificates of servers are checked: `full`, `chain` (not their names) or `none` (trust anything)."""
    server_name: str | None = None
    """The name that every server's certificate must have, instead of the address of the connection."""
    certificate_file: FileName | None = None
    """The client's own certificate, for servers that require one."""
    key_file: FileName | None = None
    key_password_file: FileName | None = None
    min_version: TlsVersion = TlsVersion.TLS_1_2
    ciphers: str = ""

    def __post_init__(self) -> None:
        for name, kind in (("verify", ServerCheck), ("min_version", TlsVersion)):
            value = getattr(self, name)
            if value not in list(kind):
                raise ValueError(f"{name} is {value!r}: allowed are {', '.join(kind)}")
            msgspec.structs.force_setattr(self, name, kind(value))
        for name in _FILES:
            value = getattr(self, name)
            msgspec.structs.force_setattr(self, name, None if value is None else os.fspath(value))
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("a client certificate needs a key: give both certificate_file and key_file")

    def to_json(self) -> str:
        """Return the options as text, for other processes."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the options that `to_json` has written."""
        return cls(**msgspec.json.decode(text))

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the options name."""
        found = (getattr(self, name) for name in _FILES)
        return tuple(Path(path) for path in found if path is not None)


Tls = bool | ssl.SSLContext | TlsOptions
"""True is TLS with the default options, and False is no TLS."""


class ClientTls:
    """TLS for the connections of one client. A change of a file counts from the next connection on."""

    def __init__(self, choice: TlsOptions | ssl.SSLContext) -> None:
        self._choice = choice

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection. May read files. Raises TlsError."""
        if isinstance(self._choice, TlsOptions):
            return _context(self._choice, file_states(self._choice.files))
        return self._choice

    def server_name(self, host: str) -> str:
        """Return the name that the certificate of the server at `host` must have."""
        chosen = self._choice.server_name if isinstance(self._choice, TlsOptions) else None
        return chosen or host


def client_tls(choice: Tls | None) -> ClientTls | None:
    """Return the TLS that a user chose, or None for plain connections. Raises TypeError."""
    if choice is None or choice is False:
        return None
    if choice is True:
        return ClientTls(TlsOptions())
    if isinstance(choice, TlsOptions | ssl.SSLContext):
        return ClientTls(choice)
    raise TypeError(f"tls is {choice!r}: it must be True, False, an ssl.SSLContext or TlsOptions")


@lru_cache(maxsize=16)
def _context(options: TlsOptions, states: tuple[FileState, ...]) -> ssl.SSLContext:
    """Return a context. One that was built from the same files is used again. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = options.min_version.number
    context.check_hostname = options.verify is ServerCheck.FULL
    context.verify_mode = ssl.CERT_NONE if options.verify is ServerCheck.NONE else ssl.CERT_REQUIRED
    choose_ciphers(context, options.ciphers)
    if options.ca_file is not None:
        load_authorities(context, Path(options.ca_file))
    elif options.verify is not ServerCheck.NONE:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if options.certificate_file is not None and options.key_file is not None:
        password_file = None if options.key_password_file is None else Path(options.key_password_file)
        load_pair(context, Path(options.certificate_file), Path(options.key_file), password_file)
    return context


def problem_text(error: OSError) -> str:
    """Return the text of an error of a TLS connection, with the remedy if there is a known one."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the server is rejected: {error.verify_message}. {_remedy(error.verify_code)}"
    if isinstance(error, ssl.SSLError):
        remedy = _REMEDIES.get(error.reason or "", "")
        return f"TLS failed: {error.reason or error}" + (f". {remedy}" if remedy else "")
    return str(error)


def _remedy(verify_code: int) -> str:
    if verify_code in _NAME_CODES:
        return "Connect by one of its names, give one (server_name, --tls-name), or check less (verify=chain)"
    if verify_code in _TIME_CODES:
        return "Renew it, and check the clocks of both machines"
    return "Give the file of its authority (ca_file, --tls-ca), or trust anything (verify=none)"


_NAME_CODES: Final = frozenset({62, 63, 64})
"""X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_EMAIL_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL."""
_TIME_CODES: Final = frozenset({9, 10})
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL."""
_REMEDIES: Final = {
    "WRONG_VERSION_NUMBER": "The server may speak no TLS: connect without it, or give the server a certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "The server requires a client certificate: give one with its key",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "Client and server may have no cipher in common, or the server requires a client "
    "certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "The server accepts only newer versions of TLS",
    "TLSV1_ALERT_UNKNOWN_CA": "The server does not know the authority of the client certificate",
}
