"""TLS between the parts of `wheelmq up`, which connect to 127.0.0.1.

A certificate often has only the names that clients use. So the parts trust the certificate of their own servers, and
check no name, unless the settings name a file of authorities or another check.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from wheelmq.config.tls import OutgoingTls, TlsSettings
from wheelmq.system.tls import ClientAuth, ServerCheck, TlsMode
from wheelmq.system.tls_client import TlsOptions

if TYPE_CHECKING:
    from wheelmq.broker.settings import BrokerSettings


def local_tls(settings: TlsSettings) -> TlsOptions | None:
    """Return the TLS of connections to the own servers; None for plain ones."""
    found = settings.outgoing_options()
    if found is None or not _trusts_itself(settings):
        return found
    return msgspec.structs.replace(found, ca_file=settings.certificate_file, verify=ServerCheck.CHAIN)


def _trusts_itself(settings: TlsSettings) -> bool:
    is_default = not settings.outgoing_ca_file and settings.outgoing_verify is ServerCheck.FULL
    return bool(settings.certificate_file) and is_default


def local_problem(settings: TlsSettings) -> str | None:
    """Return the reason why the parts of `wheelmq up` could not reach each other, with the remedy, or None."""
    if settings.mode is TlsMode.ENFORCING and settings.outgoing is OutgoingTls.NEVER:
        return (
            "tls_mode is enforcing and tls_outgoing is never: the parts of `wheelmq up` would reject each other. Set "
            "tls_outgoing to auto"
        )
    needs_certificate = settings.client_auth is ClientAuth.REQUIRE and settings.outgoing_options() is not None
    if needs_certificate and not settings.outgoing_certificate_file:
        return (
            "tls_client_auth is require, and the parts of `wheelmq up` have no certificate for each other: name one "
            "with tls_outgoing_certificate_file and tls_outgoing_key_file"
        )
    return None


def pairs_of(settings: TlsSettings) -> list[str]:
    """Return the settings that differ from their defaults, as NAME=VALUE for `--set`."""
    from wheelmq.broker.schema import BROKER
    from wheelmq.config.apache import written

    names = BROKER.groups["tls"]
    default = TlsSettings()
    return [
        f"{name}={written(getattr(settings, key))}"
        for key, name in names.items()
        if getattr(settings, key) != getattr(default, key)
    ]


def broker_pairs(settings: TlsSettings) -> list[str]:
    """Return NAME=VALUE for the broker of `wheelmq up`: how it connects to the name server."""
    if settings.outgoing_options() is None or not _trusts_itself(settings):
        return []
    return [f"tls_outgoing_ca_file={settings.certificate_file}", f"tls_outgoing_verify={ServerCheck.CHAIN}"]


def settings_from(file: Path | None, pairs: tuple[str, ...], store: Path | None = None) -> BrokerSettings:
    """Return the broker's settings of a file, the environment and `--set`, with a store. Raises CannotStart."""
    from wheelmq.broker.schema import BROKER
    from wheelmq.cli.config_options import settings_of

    options = {"store_path": (store, "--store")}
    settings, _ = settings_of(BROKER, file, pairs, fallbacks={"store_path": Path("store")}, options=options)
    return settings
