"""The errors of a call."""

from __future__ import annotations

from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command


class CallError(ConnectionError):
    """No answer: the connection failed, or the time ran out."""


class Unreachable(CallError):
    """The connection could not be opened. The request was certainly not sent."""


class Refused(Exception):
    """The server answered with a code other than SUCCESS."""

    def __init__(self, answer: Command) -> None:
        try:
            name = ResponseCode(answer.code).name
        except ValueError:
            name = "?"
        super().__init__(f"code {answer.code} ({name}): {answer.remark or ''}")
        self.answer = answer
        self.code = answer.code
