"""The settings of TLS, which broker and name server share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from wheelmq.config.setting import Setting, SettingsTable
from wheelmq.system.tls import ClientAuth, ServerCheck, TlsMode, TlsVersion
from wheelmq.system.tls_client import TlsOptions
from wheelmq.system.tls_server import ServerTlsOptions


class OutgoingTls(StrEnum):
    """Whether a part encrypts the connections that it opens itself."""

    AUTO = "auto"
    """With the mode `enforcing`."""
    ALWAYS = "always"
    NEVER = "never"


class TlsSettings(SettingsTable, kw_only=True):
    """[tls]: encryption of connections."""

    mode: Annotated[TlsMode, Setting("tls_mode", "tls.server.mode", mutable=True)] = TlsMode.PERMISSIVE
    """Connections that the port accepts: only plain ones, both kinds, or only encrypted ones. The first byte of a
    connection decides its kind. Without a certificate, `permissive` accepts only plain ones."""
    certificate_file: Annotated[str, Setting("tls_certificate_file", "tls.server.certPath")] = ""
    """PEM file with the certificate of the server, followed by the certificates of its authorities if clients need
    them. The server checks its files every 5 seconds, and loads new ones without a restart."""
    key_file: Annotated[str, Setting("tls_key_file", "tls.server.keyPath")] = ""
    """PEM file with the private key of the certificate."""
    key_password_file: Annotated[str, Setting("tls_key_password_file")] = ""
    """File with the password of an encrypted key."""
    ca_file: Annotated[str, Setting("tls_ca_file", "tls.server.trustCertPath")] = ""
    """PEM file with the authorities that sign certificates of clients."""
    client_auth: Annotated[ClientAuth, Setting("tls_client_auth", "tls.server.need.client.auth")] = ClientAuth.NONE
    """Whether clients need a certificate of an authority in `tls_ca_file`. With `optional`, a client without a
    certificate is accepted, and one with an invalid certificate is not."""
    min_version: Annotated[TlsVersion, Setting("tls_min_version")] = TlsVersion.TLS_1_2
    """The oldest accepted version."""
    ciphers: Annotated[str, Setting("tls_ciphers")] = ""
    """Ciphers of TLS 1.2 by OpenSSL's names, separated by colons. Empty means OpenSSL's choice. Those of TLS 1.3 are
    fixed."""
    outgoing: Annotated[OutgoingTls, Setting("tls_outgoing", "useTLS")] = OutgoingTls.AUTO
    """Whether the broker encrypts its own connections to name servers, and to the master that it follows. `auto` means:
    if `tls_mode` is `enforcing` at the start. Apache's true is `always`, and false is `never`. Its tools show `auto` as
    false."""
    outgoing_ca_file: Annotated[str, Setting("tls_outgoing_ca_file", "tls.client.trustCertPath")] = ""
    """PEM file with the certificates that own connections trust. Empty means the authorities of the system."""
    outgoing_verify: Annotated[ServerCheck, Setting("tls_outgoing_verify", "tls.client.authServer")] = ServerCheck.FULL
    """Check of the server's certificate: `full` (authority and name), `chain` (authority) or `none`. Apache's true is
    `chain`, and false is `none`."""
    outgoing_certificate_file: Annotated[str, Setting("tls_outgoing_certificate_file", "tls.client.certPath")] = ""
    """The certificate of own connections, for servers that require one."""
    outgoing_key_file: Annotated[str, Setting("tls_outgoing_key_file", "tls.client.keyPath")] = ""
    outgoing_key_password_file: Annotated[str, Setting("tls_outgoing_key_password_file")] = ""

    def check(self) -> None:
        """Check that files come in pairs, and that each choice has the files that it needs. The start reads them."""
        _check_pair("tls_certificate_file", self.certificate_file, "tls_key_file", self.key_file)
        _check_pair(
            "tls_outgoing_certificate_file",
            self.outgoing_certificate_file,
            "tls_outgoing_key_file",
            self.outgoing_key_file,
        )
        if self.mode is TlsMode.ENFORCING and not self.certificate_file:
            raise ValueError(
                "tls_mode is enforcing, and there is no certificate: name its files with tls_certificate_file and "
                "tls_key_file, or choose another tls_mode"
            )
        if self.client_auth is not ClientAuth.NONE and not self.ca_file:
            raise ValueError(
                f"tls_client_auth is {self.client_auth}, and no authority is known that signs certificates of clients: "
                "name a file of authorities with tls_ca_file, or set tls_client_auth to none"
            )

    @property
    def accepts(self) -> TlsMode:
        """The connections that the server accepts in fact: without a certificate, only plain ones."""
        return self.mode if self.certificate_file else TlsMode.DISABLED

    def server_options(self) -> ServerTlsOptions | None:
        """Return the certificate of the server; None if there is none."""
        if not self.certificate_file:
            return None
        return ServerTlsOptions(
            certificate_file=Path(self.certificate_file),
            key_file=Path(self.key_file),
            key_password_file=Path(self.key_password_file) if self.key_password_file else None,
            ca_file=Path(self.ca_file) if self.ca_file else None,
            client_auth=self.client_auth,
            min_version=self.min_version,
            ciphers=self.ciphers,
        )

    def outgoing_options(self) -> TlsOptions | None:
        """Return the TLS of own connections; None for plain ones."""
        is_auto = self.outgoing is OutgoingTls.AUTO
        if self.outgoing is OutgoingTls.NEVER or (is_auto and self.mode is not TlsMode.ENFORCING):
            return None
        return TlsOptions(
            ca_file=self.outgoing_ca_file or None,
            verify=self.outgoing_verify,
            certificate_file=self.outgoing_certificate_file or None,
            key_file=self.outgoing_key_file or None,
            key_password_file=self.outgoing_key_password_file or None,
            min_version=self.min_version,
            ciphers=self.ciphers,
        )


def _check_pair(certificate_name: str, certificate_file: str, key_name: str, key_file: str) -> None:
    if certificate_file and not key_file:
        raise ValueError(f"{certificate_name} is {certificate_file}, and its key is missing: name it with {key_name}")
    if key_file and not certificate_file:
        raise ValueError(f"{key_name} is {key_file}, and its certificate is missing: name it with {certificate_name}")
