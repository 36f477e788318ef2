"""Differences that are meant: each with what shows it, and the reason (FINDINGS.md has the same)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compat.twin.compare import NOT_LOOKED_AT
from compat.twin.steps import Step


@dataclass(frozen=True)
class Meant:
    """A difference that stays."""

    reason: str
    shows: Callable[[Step, Any, Any], bool]
    """Of a step and what is compared of Apache's answer and ours."""
    ends: bool = True
    """Whether the two are in different states behind it."""


def _codes(apaches: Any, ours: Any) -> tuple[object, object]:
    return tuple(said.get("code") if isinstance(said, dict) else said for said in (apaches, ours))  # type: ignore[return-value]


def _is_header_error(said: Any) -> bool:
    return isinstance(said, dict) and "Header: " in said.get(NOT_LOOKED_AT, "")


def _group(step: Step) -> str:
    fields = step.ext or {}
    return str(fields.get("group", fields.get("consumerGroup")))


def leaves_behind(step: Step, ours: Any) -> bool:
    """Whether Apache may have made a topic for a send whose header both refuse, which WheelMQ has not."""
    return step.code_number in (10, 310, 320) and _is_header_error(ours)


def _without_handle(said: Any) -> Any:
    fields = said.get("fields") if isinstance(said, dict) else None
    return {**said, "fields": {**fields, "recallHandle": None}} if fields is not None else said


def _remark(said: Any) -> str:
    return (said.get("remark") or "") if isinstance(said, dict) else ""


MEANT: tuple[Meant, ...] = (
    Meant(
        "no topic without queues is made: a send that asks for none is refused, where Apache makes a topic of none",
        lambda step, apaches, ours: step.code_number in (10, 310, 320) and _remark(ours).startswith("a topic has from"),
    ),
    Meant(
        "a group that is new to a queue without messages begins at 0; Apache's client is to ask once more, and gets 0",
        lambda step, apaches, ours: step.code_number == 14 and _codes(apaches, ours) == (22, 0),
        ends=False,
    ),
    Meant(
        "a header that lacks a field, or has one that does not fit, is refused before anything else is looked at",
        lambda step, apaches, ours: _is_header_error(ours) and _codes(apaches, ours)[0] not in (None, 0, "closed"),
        ends=False,
    ),
    Meant(
        "the same header is served by Apache, which takes what is missing or does not fit for null, 0 or false",
        lambda step, apaches, ours: _is_header_error(ours) and _codes(apaches, ours)[0] == 0,
    ),
    Meant(
        "a send to a topic without the permission to write is refused; Apache leaves that to its clients",
        lambda step, apaches, ours: _remark(ours) == "the topic[T#] sending message is forbidden",
    ),
    Meant(
        "a check is resumed (323) of a message whose checks were given up, and of no other",
        lambda step, apaches, ours: step.code_number == 323 and _codes(apaches, ours) == (0, 1),
    ),
    Meant(
        "a client that leaves a group makes none; with Apache it does",
        lambda step, apaches, ours: step.code_number == 15 and _codes(apaches, ours) in ((17, 26), (0, 26)),
    ),
    Meant(
        "no group of an empty name, or of one that no group may have, is made",
        lambda step, apaches, ours: _codes(apaches, ours)[1] == 26 and _group(step) in ("", "bad/name", "x" * 300),
    ),
    Meant(
        "a topic is made (17) without defaultTopic or topicFilterType, which say nothing that is not the default",
        lambda step, apaches, ours: step.code_number == 17 and _codes(apaches, ours) == (1, 0),
    ),
    Meant(
        "a topic whose name no topic may have is not deleted (215) either",
        lambda step, apaches, ours: step.code_number == 215 and _codes(apaches, ours) == (0, 29),
    ),
    Meant(
        "a half message has no recall handle, whatever TIMER_OUT_MS its sender set",
        lambda step, apaches, ours: "TRAN_MSG" in str(step.ext) and _without_handle(apaches) == _without_handle(ours),
        ends=False,
    ),
    Meant(
        "no oneway request is answered; Apache answers those whose answers hold messages",
        lambda step, apaches, ours: step.is_oneway and ours is None,
        ends=False,
    ),
    Meant(
        "a pull whose expression is none, or of an unknown type, is refused; Apache sends all messages",
        lambda step, apaches, ours: step.code_number in (11, 361) and _codes(apaches, ours)[1] == 23,
    ),
)


def meant(step: Step, apaches: Any, ours: Any) -> Meant | None:
    """Why the answers may differ; None when they may not."""
    return next((one for one in MEANT if one.shows(step, apaches, ours)), None)
