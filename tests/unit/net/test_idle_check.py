"""Idle connections, as a table of checks."""

from __future__ import annotations

import pytest

from wheelmq.net.idle_check import IdleCheck
from wheelmq.net.limits import IDLE_LOOKS

QUIET = (0, 0, False)


@pytest.mark.parametrize(
    ("checks", "idle_at"),
    [
        # each check: bytes received and drained since the connection opened, and whether the peer must read
        ([QUIET] * 8, IDLE_LOOKS),
        ([QUIET, QUIET, QUIET, (1, 0, False)] + [(1, 0, False)] * 6, 3 + IDLE_LOOKS),
        ([QUIET, QUIET, QUIET, (0, 1, False)] + [(0, 1, False)] * 6, 3 + IDLE_LOOKS),
        ([(count, 0, False) for count in range(8)], None),
        ([(0, count, True) for count in range(8)], None),
        ([(count, 0, True) for count in range(8)], IDLE_LOOKS - 1),  # requests of a peer that does not read
        ([(count, 0, count > 2) for count in range(8)], 2 + IDLE_LOOKS),
    ],
)
def test_a_connection_is_idle_after_checks_without_progress(
    checks: list[tuple[int, int, bool]], idle_at: int | None
) -> None:
    check = IdleCheck()
    found = [
        check.check(bytes_received=received, bytes_drained=drained, must_read=must_read)
        for received, drained, must_read in checks
    ]
    assert (found.index(True) if True in found else None) == idle_at
