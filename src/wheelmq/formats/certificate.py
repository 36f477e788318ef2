"""The facts of an X.509 certificate that operators need: validity, names and subject (RFC 5280).

The reader follows the structure of a certificate and skips all other fields. It checks no signature: that is the work
of OpenSSL.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Final, NamedTuple

from wheelmq.formats.units import Millis

DAY_MS: Final = 86_400_000
BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)

INTEGER: Final = 0x02
IDENTIFIER: Final = 0x06
UTC_TIME: Final = 0x17
GENERAL_TIME: Final = 0x18
SEQUENCE: Final = 0x30
VERSION: Final = 0xA0
EXTENSIONS: Final = 0xA3
DNS_NAME: Final = 0x82
IP_ADDRESS: Final = 0x87

COMMON_NAME: Final = bytes.fromhex("550403")
ALTERNATIVE_NAMES: Final = bytes.fromhex("551d11")


class CertificateError(ValueError):
    """The bytes are no certificate."""


class Certificate(NamedTuple):
    """The facts of one certificate."""

    subject: str
    """The common name, or an empty text."""
    not_before_ms: Millis
    not_after_ms: Millis
    names: tuple[str, ...]
    """DNS names and IP addresses that clients may use for the server."""
    der: bytes
    """The certificate itself."""

    def days_left(self, now_ms: int) -> float:
        """Return the days until it expires; a negative number once it has expired."""
        return (self.not_after_ms - now_ms) / DAY_MS

    def covers(self, host: str) -> bool:
        """Return whether a client that connects to `host` accepts the names. A wildcard covers one label."""
        address = _address(host)
        if address is not None:
            return address in self.names
        return any(_matches(name.lower(), host.lower()) for name in self.names)


class Element(NamedTuple):
    """One element of the encoding: its tag, its content, and all its bytes."""

    tag: int
    content: bytes


def parse_pem(text: bytes) -> list[Certificate]:
    """Return the certificates of a PEM file, in order. Raises CertificateError if there is none."""
    found = []
    for match in BLOCK.finditer(text):
        try:
            der = base64.b64decode(b"".join(match[1].split()), validate=True)
        except binascii.Error as error:
            raise CertificateError(f"a block of the file is no base64: {error}") from None
        found.append(parse(der))
    if not found:
        raise CertificateError("it has no block that begins with -----BEGIN CERTIFICATE-----")
    return found


def parse(der: bytes) -> Certificate:
    """Return the facts of a certificate in DER. Raises CertificateError."""
    try:
        fields = list(_elements(_one(_one(der, SEQUENCE).content, SEQUENCE).content))
        if fields[0].tag == VERSION:
            del fields[0]
        serial, _, _, validity, subject, _, *rest = fields
        if serial.tag != INTEGER:
            raise CertificateError("it has no serial number")
        not_before_ms, not_after_ms = (_time_ms(one) for one in _elements(validity.content))
        common_name = _common_name(subject)
        names = tuple(_alternative_names(rest))
    except (ValueError, IndexError) as error:
        raise CertificateError(f"it is no X.509 certificate: {error}") from None
    return Certificate(common_name, not_before_ms, not_after_ms, names, der)


def _elements(data: bytes) -> Iterator[Element]:
    """Yield the elements of `data` in order. Raises ValueError."""
    at = 0
    while at < len(data):
        if len(data) < at + 2:
            raise ValueError(f"{len(data) - at} stray bytes")
        tag, size, begin = data[at], data[at + 1], at + 2
        if size >= 0x80:
            width = size & 0x7F
            if not 1 <= width <= 4:
                raise ValueError(f"a length of {width} bytes")
            size, begin = int.from_bytes(data[begin : begin + width], "big"), begin + width
        at = begin + size
        if at > len(data):
            raise ValueError("an element ends after the data")
        yield Element(tag, data[begin:at])


def _one(data: bytes, tag: int) -> Element:
    """Return the first element of `data`. Raises ValueError if it has another tag."""
    found = next(_elements(data), None)
    if found is None or found.tag != tag:
        raise ValueError(f"an element with the tag {tag:#x} is missing")
    return found


def _time_ms(element: Element) -> Millis:
    text = element.content.decode("ascii")
    if element.tag == UTC_TIME:
        text = ("20" if text[:2] < "50" else "19") + text
    elif element.tag != GENERAL_TIME:
        raise ValueError("a time is missing")
    moment = datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc)
    return Millis(int(moment.timestamp()) * 1000)


def _common_name(subject: Element) -> str:
    for part in _elements(subject.content):
        for pair in _elements(part.content):
            kind, value = _elements(pair.content)
            if kind.tag == IDENTIFIER and kind.content == COMMON_NAME:
                return value.content.decode("utf-8", "replace")
    return ""


def _alternative_names(fields: list[Element]) -> Iterator[str]:
    """Yield the DNS names and IP addresses of the extension for alternative names."""
    for field in fields:
        if field.tag != EXTENSIONS:
            continue
        for extension in _elements(_one(field.content, SEQUENCE).content):
            identifier, *_, value = _elements(extension.content)
            if identifier.content != ALTERNATIVE_NAMES:
                continue
            for name in _elements(_one(value.content, SEQUENCE).content):
                if name.tag == DNS_NAME:
                    yield name.content.decode("ascii")
                elif name.tag == IP_ADDRESS:
                    yield str(ipaddress.ip_address(name.content))


def _matches(name: str, host: str) -> bool:
    if name.startswith("*."):
        label, _, rest = host.partition(".")
        return bool(label) and rest == name[2:]
    return name == host


def _address(host: str) -> str | None:
    """Return an IP address in its usual form, or None for a name."""
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return None
