"""The answers that reject requests of the pipeline (docs/formats/turns.md)."""

from __future__ import annotations

from wheelmq.broker.answers import reply
from wheelmq.delay.timer.turns import LeaseHeld, Stale, TurnRejected
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command


def turn_rejection(error: LeaseHeld | Stale | TurnRejected) -> Command:
    """Return the answer to a rejected request. Its remark begins with a word for the pipeline."""
    match error:
        case LeaseHeld():
            return reply(ResponseCode.NO_PERMISSION, f"LEASE_HELD: {error}")
        case Stale():
            return reply(ResponseCode.INVALID_PARAMETER, f"STALE: {error}")
        case TurnRejected():
            return reply(ResponseCode.ILLEGAL_OPERATION, f"TURN_REFUSED: {error}")
