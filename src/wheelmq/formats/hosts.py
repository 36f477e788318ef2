"""Addresses as text, and the hosts in settings that only this machine can reach."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@lru_cache(100_000)
def ip_text(address: bytes) -> str:
    """Return an address of 4 or 16 bytes as text. An IPv4 address in IPv6 form is written as IPv4."""
    found = ipaddress.ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
