"""The checks of `wheelmq doctor` for TLS: certificate, names, key, and the certificate that a broker presents."""

from __future__ import annotations

import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wheelmq.cli.check import Check, CheckStatus
from wheelmq.cli.ports import HOST, is_free

if TYPE_CHECKING:
    from wheelmq.broker.settings import BrokerSettings
    from wheelmq.formats.certificate import Certificate

NAME: Final = "tls"
EXPIRY_DAYS_WISHED: Final = 14.0
CONNECT_S: Final = 3.0
RENEW: Final = "replace the files of the certificate and of its key: the parts load them without a restart"
OTHER_NAMES: Final = (
    "issue a certificate with this address in subjectAltName, or let clients check only the authority (--tls-verify "
    "chain)"
)


def tls_checks(settings: BrokerSettings, broker_port: int) -> Iterator[Check]:
    """Yield the checks of the settings and of the broker on `broker_port` of this machine."""
    from wheelmq.system.clock import SystemClock
    from wheelmq.system.tls import TlsError
    from wheelmq.system.tls_client import client_tls

    try:
        options = settings.tls.server_options()
        loaded = None if options is None else options.load()
        outgoing = client_tls(settings.tls.outgoing_options())
        if outgoing is not None:
            outgoing.context()
    except TlsError as error:
        yield Check(NAME, CheckStatus.FAIL, str(error))
        return
    if loaded is None:
        yield Check(NAME, CheckStatus.OK, "no certificate is set, so all connections are plain")
        return
    yield time_check(loaded.certificate, SystemClock().now_ms())
    yield names_check(loaded.certificate, settings.broker.host)
    yield key_check(Path(settings.tls.key_file))
    yield served_check(loaded.certificate, broker_port)


def time_check(certificate: Certificate, now_ms: int) -> Check:
    """Check that the certificate is valid now, and for some time."""
    days, subject = certificate.days_left(now_ms), certificate.subject or "without a subject"
    if now_ms < certificate.not_before_ms:
        advice = "check the clock of this machine, or wait"
        return Check(NAME, CheckStatus.FAIL, f"the certificate {subject} is not valid yet", advice)
    if days <= 0:
        return Check(NAME, CheckStatus.FAIL, f"the certificate {subject} expired {-days:.1f} days ago", RENEW)
    detail = f"the certificate {subject} is valid for {days:.1f} days, and its key fits"
    if days < EXPIRY_DAYS_WISHED:
        return Check(NAME, CheckStatus.WARN, detail, RENEW)
    return Check(NAME, CheckStatus.OK, detail)


def names_check(certificate: Certificate, address: str) -> Check:
    """Check that the certificate has the address that clients get from routes."""
    names = ", ".join(certificate.names) or "none"
    if certificate.covers(address):
        return Check("tls names", CheckStatus.OK, f"{names}; routes have {address}")
    return Check(
        "tls names", CheckStatus.WARN, f"{names}; {address}, the address in routes, is not among them", OTHER_NAMES
    )


def key_check(path: Path) -> Check:
    """Check that only the owner can read the private key."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        return Check("tls key", CheckStatus.WARN, f"others can read {path} ({mode:o})", f"`chmod 600 {path}`")
    return Check("tls key", CheckStatus.OK, f"only its owner can read {path}")


def served_check(certificate: Certificate, port: int) -> Check:
    """Check that the broker on `port` presents the certificate of the file."""
    if is_free(port):
        return Check("tls broker", CheckStatus.OK, f"no broker runs on port {port}")
    served = served_certificate(port)
    if served is None:
        advice = "if it is a broker, start it again with these settings, and with a tls_mode other than disabled"
        return Check("tls broker", CheckStatus.WARN, f"the process on port {port} accepts no TLS", advice)
    if served != certificate.der:
        advice = "within seconds it loads files that fit each other; its log names the problem, see the lines with TLS"
        return Check("tls broker", CheckStatus.WARN, f"the broker on port {port} presents another certificate", advice)
    return Check("tls broker", CheckStatus.OK, f"the broker on port {port} presents this certificate")


def served_certificate(port: int) -> bytes | None:
    """Return the certificate of the server on `port` of this machine; None if it accepts no TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((HOST, port), CONNECT_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as link,
        ):
            return link.getpeercert(binary_form=True)
    except OSError:
        return None
