"""Message ids (RocketMQ: MessageDecoder.createMessageId)."""

from __future__ import annotations

from wheelmq.formats.disk.message import Host
from wheelmq.formats.units import LogPosition


def offset_message_id(store_host: Host, position: LogPosition) -> str:
    """Return the id in the answer to a send: host, port and log position in upper-case hex, 32 or 56 characters."""
    return (store_host.address + store_host.port.to_bytes(4, "big") + position.to_bytes(8, "big")).hex().upper()


def parse_offset_message_id(text: str) -> tuple[Host, LogPosition]:
    """Return the host and the log position in an offset message id. Raises ValueError if `text` is not valid."""
    raw = bytes.fromhex(text)
    if len(raw) not in (16, 28):
        raise ValueError(f"an offset message id has 32 or 56 hex digits, not {len(text)}")
    host = Host(raw[:-12], int.from_bytes(raw[-12:-8], "big"))
    return host, LogPosition(int.from_bytes(raw[-8:], "big"))
