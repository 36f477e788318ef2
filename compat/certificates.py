"""Certificates for tests, suites and benchmarks: an authority, and the pairs that it signs."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

LOCAL: Final = ("localhost", "127.0.0.1", "::1")
DAYS: Final = 30.0

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Pair:
    """The files of a certificate and its private key, in PEM."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates. All files are in `folder`."""

    def __init__(self, folder: Path, name: str = "Test authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name.replace(' ', '-')}.pem"
        certificate = (
            _builder(self._name, self._name, self._key, days=10 * DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        file: str = "server",
        *,
        names: tuple[str, ...] = LOCAL,
        days: float = DAYS,
        password: str | None = None,
        rsa_bits: int | None = None,
    ) -> Pair:
        """Write the files `file`.pem and `file`.key, in place of older ones, each in one step.

        The key is one of the curve P-256, or RSA with `rsa_bits`. With `days` below 0 the certificate has expired.
        """
        key: PrivateKey = (
            ec.generate_private_key(ec.SECP256R1()) if rsa_bits is None else rsa.generate_private_key(65537, rsa_bits)
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, file)])
        builder = _builder(subject, self._name, key, days=days)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([_name(one) for one in names]), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        pair = Pair(self.folder / f"{file}.pem", self.folder / f"{file}.key")
        _replace(pair.certificate, certificate.public_bytes(pem))
        _replace(pair.key, key.private_bytes(pem, pkcs8, encryption))
        return pair


def _builder(subject: x509.Name, issuer: x509.Name, key: PrivateKey, *, days: float) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=abs(days) + 1))
        .not_valid_after(now + timedelta(days=days))
    )


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_suffix(f"{path.suffix}.new")
    fresh.write_bytes(content)
    fresh.replace(path)
