"""Tickets for the HA port: with authentication, only replicas that signed a request get the log.

The HA port has no requests that a replica could sign. So a replica first asks for a ticket with a signed
WMQ_REPLICATION_STATE, and sends it before its handshake. A ticket is valid once and for a short time.
"""

from __future__ import annotations

from typing import Final

from wheelmq.system.clock import Clock
from wheelmq.system.secure_random import secure_token

VALID_MS: Final = 30_000
TICKETS_MAX: Final = 1000
"""Unused tickets. The oldest one becomes invalid if there are more."""
TICKET_BYTES_MAX: Final = 64


class ReplicaTickets:
    """The unused tickets of one master."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._expiry_ms: dict[str, int] = {}
        """By ticket, the oldest first."""

    def issue(self) -> str:
        """Return another ticket."""
        if len(self._expiry_ms) >= TICKETS_MAX:
            del self._expiry_ms[next(iter(self._expiry_ms))]
        ticket = secure_token()
        assert len(ticket) <= TICKET_BYTES_MAX
        self._expiry_ms[ticket] = self._clock.monotonic_ms() + VALID_MS
        return ticket

    def redeem(self, ticket: str) -> bool:
        """Invalidate `ticket`. Returns whether it was valid."""
        expiry_ms = self._expiry_ms.pop(ticket, None)
        return expiry_ms is not None and self._clock.monotonic_ms() < expiry_ms
