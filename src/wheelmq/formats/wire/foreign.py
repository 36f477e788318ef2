"""Detection of a peer that does not speak RocketMQ's remoting protocol, from its first four bytes.

As the length of a frame, these bytes explain nothing: HTTP/2 begins with 1347569952.
"""

from __future__ import annotations

from typing import Final

_HTTP_1: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"HTTP")
"""The first bytes of a request or an answer."""
_TLS_RECORDS: Final = (b"\x16\x03", b"\x15\x03")
"""A handshake or an alert, and the major version."""

_PROXY_HEADERS: Final = (b"PROX", b"\r\n\r\n")
"""The first bytes of versions 1 and 2."""


def foreign_text(head: bytes) -> str | None:
    """Return a text that names the peer's protocol and the remedy, or None if the protocol of `head` is unknown."""
    if head == b"PRI ":
        return (
            "the peer speaks HTTP/2, as gRPC clients do; this port speaks RocketMQ's remoting protocol: use a remoting "
            "client, such as DefaultMQProducer of rocketmq-client in Java"
        )
    if head in _HTTP_1:
        return "the peer speaks HTTP/1; this port speaks RocketMQ's remoting protocol: check the address and the port"
    if head[:2] in _TLS_RECORDS:
        return (
            "the peer speaks TLS; this port accepts only plain connections: give the server a certificate "
            "(tls_certificate_file, tls_key_file), or switch off TLS in the client (tls.enable=false)"
        )
    return proxy_text(head)


def proxy_text(head: bytes) -> str | None:
    """Return a text if `head` is the beginning of a header of HAProxy's PROXY protocol, else None."""
    if head not in _PROXY_HEADERS:
        return None
    return (
        "the peer begins with a header of the PROXY protocol, which is not read: switch it off in the load balancer "
        "(HAProxy: no send-proxy)"
    )
