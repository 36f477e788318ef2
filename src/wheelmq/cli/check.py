"""A check of `wheelmq doctor`: one line of its report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckStatus(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    status: CheckStatus
    detail: str
    advice: str = ""
