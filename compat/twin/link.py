"""The connection of a sequence to one broker."""

from __future__ import annotations

import json
from typing import Any

from compat.frames.wire import Peer, frame
from compat.twin.steps import Answer

ANSWER_S = 8.0
"""How long a required answer may take."""
SILENCE_S = 0.15
"""How long the link waits if no answer is expected."""
RESPONSE = 1
BARRIER = 1 << 20
"""Opaque of the requests that show whether the broker has processed all earlier requests."""
SETTLE_TIMES = 400


class Link:
    """Sends requests to one broker. It opens a new connection when the broker has closed the old one."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._peer = Peer(address)

    def close(self) -> None:
        self._peer.__exit__()

    def ask(self, data: bytes, opaque: int, *, is_silent: bool = False) -> Answer | None:
        """Return the answer to a frame; None if there is none in time, `closed` if the broker closed the connection."""
        try:
            self._peer.send(data)
        except OSError:
            return self._reopened()
        while True:
            outcome = self._peer.outcome(wait_s=SILENCE_S if is_silent else ANSWER_S)
            if outcome.closed:
                return self._reopened()
            if not outcome.answers:
                return None
            (answer,) = outcome.answers
            if answer.get("flag", 0) & RESPONSE and answer.get("opaque") == opaque:
                return answer  # requests of the broker and late answers are skipped

    def settle(self) -> None:
        """Wait until all stored messages are in the broker's queues and its index."""
        for _ in range(SETTLE_TIMES):
            answer = self.ask(
                frame({"code": 28, "opaque": BARRIER, "flag": 0, "version": 479, "language": "JAVA"}), BARRIER
            )
            table: dict[str, Any] = json.loads(answer["body"])["table"] if answer else {}
            if table.get("dispatchBehindBytes") == "0":
                return
        raise TimeoutError(f"{self._address} does not come to an end with what it stored")

    def _reopened(self) -> Answer:
        self._peer.__exit__()
        self._peer = Peer(self._address)
        return {"closed": True}
