"""The certificate of a server: its files, and what OpenSSL loads from them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from wheelmq.formats.certificate import Certificate
from wheelmq.system.tls import (
    ClientAuth,
    FileState,
    TlsError,
    TlsVersion,
    choose_ciphers,
    file_states,
    load_authorities,
    load_pair,
    read_certificates,
)

_VERIFY_MODES = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRE: ssl.CERT_REQUIRED,
}


@dataclass(frozen=True, slots=True)
class LoadedCertificate:
    """A certificate in use."""

    context: ssl.SSLContext
    certificate: Certificate
    states: tuple[FileState, ...]
    """The states of the files that it was loaded from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTlsOptions:
    """The files of a server's certificate, and the rules for its connections."""

    certificate_file: Path
    key_file: Path
    key_password_file: Path | None = None
    ca_file: Path | None = None
    """The authorities of client certificates."""
    client_auth: ClientAuth = ClientAuth.NONE
    min_version: TlsVersion = TlsVersion.TLS_1_2
    ciphers: str = ""

    @property
    def files(self) -> tuple[Path, ...]:
        found = (self.certificate_file, self.key_file, self.key_password_file, self.ca_file)
        return tuple(path for path in found if path is not None)

    def load(self) -> LoadedCertificate:
        """Load all files. Raises TlsError."""
        states = file_states(self.files)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self.min_version.number
        context.options |= ssl.OP_NO_RENEGOTIATION
        choose_ciphers(context, self.ciphers)
        load_pair(context, self.certificate_file, self.key_file, self.key_password_file)
        context.verify_mode = _VERIFY_MODES[self.client_auth]
        if self.client_auth is not ClientAuth.NONE:
            if self.ca_file is None:
                raise TlsError(
                    f"tls_client_auth is {self.client_auth}, and no authority is known that signs client certificates: "
                    "name a file of authorities with tls_ca_file"
                )
            load_authorities(context, self.ca_file)
        (certificate, *_) = read_certificates(self.certificate_file, "certificate file")
        if file_states(self.files) != states:
            raise TlsError(f"{self.certificate_file} or one of its other files changed while they were read")
        return LoadedCertificate(context, certificate, states)
