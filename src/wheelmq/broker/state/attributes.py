"""Attributes of topics, and how a request changes them (RocketMQ: TopicAttributes, AttributeParser, AttributeUtil)."""

from __future__ import annotations

from typing import Final

MESSAGE_TYPE: Final = "message.type"
_VALUES: Final = {
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
    MESSAGE_TYPE: ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"),
}
"""What a topic's attributes may be. Apache has two more: queues of batches, and logs that are compacted."""
_FIXED: Final = ("queue.type", "cleanup.policy")
"""What stays as the topic was made with."""


class BadAttribute(ValueError):
    """A change that cannot be; the text says of what, and why."""


def parse(text: str) -> dict[str, str]:
    """The changes in `+key=value,-key`: values by signed key. Raises BadAttribute."""
    changes: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not key.startswith("+" if equals else "-"):
            what = "add/alter" if equals else "delete"
            raise BadAttribute(f"{what} attribute format is wrong: {key}: write +key=value, or -key to remove one")
        if key in changes:
            raise BadAttribute(f"key duplication: {key}")
        changes[key] = value
    return changes


def changed(
    known: dict[str, str] | None, changes: dict[str, str], values: dict[str, tuple[str, ...]] | None = None
) -> dict[str, str]:
    """What the attributes `known` of a topic become by `changes`; None are those of one that is made now.

    `values` are those that there may be, by key, if it is no topic. Raises BadAttribute.
    """
    values = _VALUES if values is None else values
    found = dict(known or {})
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if sign not in ("+", "-") or not key:
            raise BadAttribute(f"wrong format key: {signed}: write +key=value, or -key to remove one")
        if key not in values:
            raise BadAttribute(f"unsupported key: {key}: there are {', '.join(values) or 'none'}")
        if known is None and sign == "-":
            raise BadAttribute(f"only add attribute is supported while creating topic. key: {key}")
        if known is not None and key in _FIXED:
            raise BadAttribute(f"attempt to update an unchangeable attribute. key: {key}")
        if sign == "-":
            if key not in found:
                raise BadAttribute(f"attempt to delete a nonexistent key: {key}")
            del found[key]
        elif value not in values[key]:
            raise BadAttribute(f"{key} is {value}: it can be {', '.join(values[key])}")
        else:
            found[key] = value
    return found
