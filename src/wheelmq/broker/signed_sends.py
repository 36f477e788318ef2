"""Signed sends before the kernel: the check of signatures and rights that the plain code does in dispatch.

The kernel appends records and knows nothing of users. So with authentication, it gets only the sends at the front of
a connection's input that passed this check. A turn checks each frame once: a frame that the kernel leaves to the plain
code does not cause another check of those after it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.broker.access import AccessControl
from wheelmq.broker.connection import Connection
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.bodies import BodyError
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import FrameError

SENDS: Final = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE))
"""The codes of sends. The kernel serves SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""


class SignedSends:
    """Finds the sends that the kernel may serve."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._checked_to = 0
        """End of the frames of this turn that are checked."""
        self._is_over = False
        """Whether the frame at `_checked_to` is for the plain code."""

    def begin_read(self) -> None:
        """Forget the frames of the last turn."""
        self._checked_to, self._is_over = 0, False

    def end_of_allowed(
        self, connection: Connection, buffer: npt.NDArray[np.uint8], at: int, end: int, count_max: int
    ) -> int:
        """Return the end of the complete sends from `at` on that may be served, at most `count_max` more of them."""
        if self._checked_to < at:
            self._checked_to, self._is_over = at, False
        view = buffer.data
        while not self._is_over and count_max > 0:
            stop = self._checked(connection, view, end)
            if stop is None:
                self._is_over = True
            else:
                self._checked_to = stop
                count_max -= 1
        return self._checked_to

    def _checked(self, connection: Connection, view: memoryview, end: int) -> int | None:
        """Return the end of the next frame if it is a send that may be served; else None."""
        try:
            stop = frame.frame_end(view, self._checked_to, end)
            if stop is None:
                return None
            command = frame.decode(view, self._checked_to, stop)
            is_allowed = command.code in SENDS and self._access.allows_send(command, connection)
        except (FrameError, BodyError):
            return None
        return stop if is_allowed else None
