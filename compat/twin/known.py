"""Intended differences: a test for each, and the reason (also in FINDINGS.md)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compat.twin.compare import NOT_LOOKED_AT, SHARED
from compat.twin.steps import Step


@dataclass(frozen=True)
class Meant:
    reason: str
    shows: Callable[[Step, Any, Any], bool]
    """Called with a step and the comparable parts of Apache's and WheelMQ's answer."""
    ends: bool = True
    """Whether the two brokers are in different states after it."""


def _codes(apaches: Any, ours: Any) -> tuple[object, object]:
    return tuple(said.get("code") if isinstance(said, dict) else said for said in (apaches, ours))  # type: ignore[return-value]


def _is_header_error(said: Any) -> bool:
    return isinstance(said, dict) and "Header: " in said.get(NOT_LOOKED_AT, "")


def _group(step: Step) -> str:
    """Return the group that a step names in its header, or in its body if it creates one."""
    fields = step.ext or {}
    made = re.search(r'"groupName": "([^"]*)"', step.body or "") if step.code_number == 200 else None
    return made[1] if made is not None else str(fields.get("group", fields.get("consumerGroup")))


def leaves_behind(step: Step, ours: Any) -> bool:
    """Return whether Apache may have created a topic, unlike WheelMQ, for a send whose header both reject."""
    return step.code_number in (10, 310, 320) and _is_header_error(ours)


def _without_handle(said: Any) -> Any:
    fields = said.get("fields") if isinstance(said, dict) else None
    return {**said, "fields": {**fields, "recallHandle": None}} if fields is not None else said


def _but_for_subscription(said: Any) -> Any:
    body = said.get("body") if isinstance(said, dict) else None
    if not isinstance(body, dict):
        return said
    return {**said, "body": {name: value for name, value in body.items() if name != "subscriptionData"}}


def _remark(said: Any) -> str:
    return (said.get("remark") or "") if isinstance(said, dict) else ""


MEANT: tuple[Meant, ...] = (
    Meant(
        "no topic without queues is made: a send that asks for none is refused, where Apache makes a topic of none",
        lambda step, apaches, ours: step.code_number in (10, 310, 320) and _remark(ours).startswith("a topic has #"),
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
        lambda step, apaches, ours: (
            _codes(apaches, ours)[1] in (26, 29) and _group(step) in ("", "bad/name", "x" * 300)
        ),
    ),
    Meant(
        "a body that is no JSON object is refused; Apache takes a list, and null, for one that says nothing",
        lambda step, apaches, ours: (
            step.code_number == 46 and step.body in ("[]", "null") and _codes(apaches, ours) == (0, 1)
        ),
        ends=False,
    ),
    Meant(
        "a queue is there (321) as soon as a send to it is answered; with Apache some milliseconds later",
        lambda step, apaches, ours: step.code_number == 321 and _codes(apaches, ours) == (1, 0),
        ends=False,
    ),
    Meant(
        "a queue that all sequences share is there (321) once a message waits in it, which those before may have sent",
        lambda step, apaches, ours: (
            step.code_number == 321 and str((step.ext or {}).get("topic")) in SHARED and _codes(apaches, ours) == (0, 1)
        ),
        ends=False,
    ),
    Meant(
        "what a pull says that its group subscribes to is told to nobody (345); what heartbeats say is",
        lambda step, apaches, ours: step.code_number == 345 and _but_for_subscription(apaches) == ours,
        ends=False,
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
        "what is no timer has no recall handle, whatever TIMER_OUT_MS its sender set",
        lambda step, apaches, ours: (
            "TIMER_OUT_MS" in str(step.ext) and _without_handle(apaches) == _without_handle(ours)
        ),
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
    """Return the reason why the answers may differ; None if they may not."""
    return next((one for one in MEANT if one.shows(step, apaches, ours)), None)
