"""The facts of certificates, compared with those that the library `cryptography` reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from compat.certificates import Authority
from wheelmq.formats.certificate import Certificate, CertificateError, parse, parse_pem

PEM, DER = serialization.Encoding.PEM, serialization.Encoding.DER


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.parametrize("rsa_bits", [None, 2048], ids=["P-256", "RSA"])
@pytest.mark.parametrize("names", [(), ("localhost",), ("a.example", "*.b.example", "10.0.0.7", "2001:db8::1")])
def test_all_facts_are_those_of_the_library(authority: Authority, names: tuple[str, ...], rsa_bits: int | None) -> None:
    content = authority.issue("some server", names=names, rsa_bits=rsa_bits).certificate.read_bytes()
    (found,) = parse_pem(content)
    theirs = x509.load_pem_x509_certificate(content)
    assert found == Certificate(
        subject="some server",
        not_before_ms=int(theirs.not_valid_before_utc.timestamp()) * 1000,
        not_after_ms=int(theirs.not_valid_after_utc.timestamp()) * 1000,
        names=names,
        der=theirs.public_bytes(DER),
    )


def test_a_chain_is_read_in_order(authority: Authority) -> None:
    pair = authority.issue("leaf")
    chain = b"a comment\n" + pair.certificate.read_bytes() + authority.file.read_bytes()
    assert [one.subject for one in parse_pem(chain)] == ["leaf", "Test authority"]


@pytest.mark.parametrize("year", [1949, 1951, 2049, 2050, 2100, 9999])
def test_both_forms_of_a_time(year: int) -> None:
    """Years from 1950 to 2049 have two digits, and other years have four."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    end = datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_after(max(end, datetime(1950, 1, 2, tzinfo=UTC)))
        .not_valid_before(max(end - timedelta(days=9000), datetime(1950, 1, 1, tzinfo=UTC)))
        .sign(key, hashes.SHA256())
    )
    found = parse(made.public_bytes(DER))
    assert found.not_after_ms == int(made.not_valid_after_utc.timestamp()) * 1000
    assert found.not_before_ms == int(made.not_valid_before_utc.timestamp()) * 1000
    assert found.subject == ""


def test_a_subject_has_other_parts_than_a_name() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COUNTRY_NAME, "DE"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Großer Verein"),
            x509.NameAttribute(NameOID.COMMON_NAME, "bröker-1"),
        ]
    )
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    assert parse(made.public_bytes(DER)).subject == "bröker-1"


@pytest.mark.parametrize(
    ("host", "is_covered"),
    [
        ("a.example", True),
        ("A.Example", True),
        ("x.a.example", False),
        ("one.b.example", True),
        ("two.one.b.example", False),
        ("b.example", False),
        (".b.example", False),
        ("10.0.0.7", True),
        ("10.0.0.8", False),
        ("2001:db8::1", True),
        ("[2001:0db8:0:0::1]", True),
        ("localhost", False),
    ],
)
def test_a_certificate_covers_its_names_and_one_label_of_a_wildcard(
    authority: Authority, host: str, is_covered: bool
) -> None:
    names = ("a.example", "*.b.example", "10.0.0.7", "2001:db8::1")
    (found,) = parse_pem(authority.issue("names", names=names).certificate.read_bytes())
    assert found.covers(host) is is_covered


def test_the_days_that_are_left(authority: Authority) -> None:
    (found,) = parse_pem(authority.issue("days", days=30).certificate.read_bytes())
    assert found.days_left(found.not_after_ms - 36 * 3_600_000) == 1.5
    assert found.days_left(found.not_after_ms + 12 * 3_600_000) == -0.5


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "no block that begins with -----BEGIN CERTIFICATE-----"),
        (b"-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----", "no base64"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "no X.509 certificate"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----", "no block"),
    ],
)
def test_other_files_are_rejected(content: bytes, text: str) -> None:
    with pytest.raises(CertificateError, match=text):
        parse_pem(content)


@given(st.binary(max_size=300))
def test_any_bytes_are_rejected_in_order(data: bytes) -> None:
    with pytest.raises(CertificateError):
        parse(data)


def test_a_damaged_certificate_is_read_or_rejected(authority: Authority) -> None:
    """Each bit of a certificate, one at a time."""
    (whole,) = parse_pem(authority.issue("damaged").certificate.read_bytes())
    rejected = 0
    for bit in range(8 * len(whole.der)):
        damaged = bytearray(whole.der)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            parse(bytes(damaged))
        except CertificateError:
            rejected += 1
    assert 0 < rejected < 8 * len(whole.der)
