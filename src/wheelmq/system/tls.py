"""The choices for TLS, and the files of certificates and keys that servers and clients load."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from wheelmq.formats.certificate import Certificate, CertificateError, parse_pem
from wheelmq.system.backports import StrEnum

KEY_MARK: Final = b"PRIVATE KEY-----"
ENCRYPTED_MARKS: Final = (b"BEGIN ENCRYPTED PRIVATE KEY", b"Proc-Type: 4,ENCRYPTED")

FileState = tuple[int, int, int] | None
"""Inode, time of the last change and size of a file. None for a missing file."""


class TlsMode(StrEnum):
    """Which connections a server accepts (RocketMQ: TlsMode)."""

    DISABLED = "disabled"
    """Only plain ones."""
    PERMISSIVE = "permissive"
    """Plain ones, and encrypted ones if there is a certificate."""
    ENFORCING = "enforcing"
    """Only encrypted ones."""


class ClientAuth(StrEnum):
    """Whether a server asks its clients for certificates."""

    NONE = "none"
    OPTIONAL = "optional"
    """A client may have none. If it has one, it must be valid."""
    REQUIRE = "require"


class TlsVersion(StrEnum):
    """The oldest version of TLS that a server or a client accepts."""

    TLS_1_2 = "TLSv1.2"
    TLS_1_3 = "TLSv1.3"

    @property
    def number(self) -> ssl.TLSVersion:
        """The version as OpenSSL's binding names it."""
        return ssl.TLSVersion.TLSv1_2 if self is TlsVersion.TLS_1_2 else ssl.TLSVersion.TLSv1_3


class ServerCheck(StrEnum):
    """How a client checks the certificate of a server."""

    FULL = "full"
    """A known authority signed it, and it has the name that the client connects to."""
    CHAIN = "chain"
    """A known authority signed it."""
    NONE = "none"
    """Anything is accepted. The connection is encrypted, and a machine in between can read it."""


class TlsError(OSError):
    """A file or a setting of TLS cannot be used. The text names it and the remedy."""


def file_states(paths: tuple[Path, ...]) -> tuple[FileState, ...]:
    """Return the states of files, to notice a change."""
    return tuple(map(_state, paths))


def _state(path: Path) -> FileState:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_file(path: Path, role: str) -> bytes:
    """Return the content of a file. Raises TlsError, which names the file by its `role`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(
            f"the {role} {path} cannot be read: {error.strerror}. Name an existing file that this user may read"
        ) from None


def read_certificates(path: Path, role: str) -> list[Certificate]:
    """Return the certificates in a PEM file. Raises TlsError."""
    try:
        return parse_pem(read_file(path, role))
    except CertificateError as error:
        raise TlsError(f"the {role} {path} has no certificate in PEM: {error}") from None


def load_pair(context: ssl.SSLContext, certificate_file: Path, key_file: Path, password_file: Path | None) -> None:
    """Load a certificate with its chain, and its private key. Raises TlsError."""
    read_certificates(certificate_file, "certificate file")
    key = read_file(key_file, "key file")
    if KEY_MARK not in key:
        raise TlsError(f"the key file {key_file} has no private key in PEM: it needs a block with {KEY_MARK.decode()}")
    password = None
    if any(mark in key for mark in ENCRYPTED_MARKS):
        if password_file is None:
            raise TlsError(
                f"the key file {key_file} is encrypted: write its password to a file, and name that in the setting for "
                "the key's password file"
            )
        password = read_file(password_file, "password file").rstrip(b"\r\n")
    try:
        context.load_cert_chain(certificate_file, key_file, password if password is not None else b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(
                f"the key in {key_file} is not that of the certificate in {certificate_file}: name the two files of "
                "one pair"
            ) from None
        if password is not None:
            raise TlsError(
                f"the key file {key_file} cannot be decrypted with the password in {password_file}: check the password"
            ) from None
        raise TlsError(f"OpenSSL rejects {certificate_file} with {key_file}: {error.reason or error}") from None


def load_authorities(context: ssl.SSLContext, path: Path) -> None:
    """Load the certificates that `context` trusts. Each one is enough by itself, as the last of a chain.

    Raises TlsError.
    """
    read_certificates(path, "CA file")
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise TlsError(f"OpenSSL rejects the CA file {path}: {error.reason or error}") from None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def choose_ciphers(context: ssl.SSLContext, ciphers: str) -> None:
    """Set the ciphers of TLS 1.2; an empty text keeps OpenSSL's choice. Raises TlsError."""
    if not ciphers:
        return
    try:
        context.set_ciphers(ciphers)
    except ssl.SSLError:
        raise TlsError(
            f"OpenSSL knows no cipher in {ciphers!r}: `openssl ciphers -v` lists them; separate several by colons"
        ) from None
