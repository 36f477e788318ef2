"""Addresses as text, and the hosts in settings that only this machine can reach."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


def is_loopback(host: str) -> bool:
    """Return whether `host` is an address of this machine alone. Python before 3.13 denies it for ::ffff:127.0.0.1."""
    try:
        return _unmapped(ipaddress.ip_address(host)).is_loopback
    except ValueError:
        return host == "localhost"


@lru_cache(100_000)
def ip_text(address: bytes) -> str:
    """Return an address of 4 or 16 bytes as text. An IPv4 address in IPv6 form is written as IPv4."""
    return str(_unmapped(ipaddress.ip_address(address)))


def _unmapped(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IPv4 address of an IPv4 address in IPv6 form. Other addresses stay as they are."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
