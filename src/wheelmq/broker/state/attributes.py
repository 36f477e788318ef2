"""Attributes of topics, and how a request changes them (RocketMQ: TopicAttributes, AttributeParser, AttributeUtil)."""

from __future__ import annotations

from typing import Final

MESSAGE_TYPE: Final = "message.type"
_VALUES: Final = {
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
    MESSAGE_TYPE: ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"),
}
"""Attributes of a topic and their values. Apache has two more: queues of batches, and compacted logs."""
_FIXED: Final = ("queue.type", "cleanup.policy")
"""Attributes that do not change after the topic is created."""


class BadAttribute(ValueError):
    """A change that is not possible. The text names the change and the reason."""


def parse(text: str) -> dict[str, str]:
    """Parse the changes in `+key=value,-key`. Returns the values by signed key. Raises BadAttribute."""
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
    """Return the attributes `known` of a topic after `changes`. `known` is None for a new topic.

    `values` are the possible values by key, if it is no topic. Raises BadAttribute.
    """
    values = _VALUES if values is None else values
    found = dict(known or {})
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if sign not in ("+", "-") or not key:
            raise BadAttribute(f"wrong format key: {signed}: write +key=value, or -key to remove one")
        if key not in values:
            raise BadAttribute(f"unsupported key: {key}: the supported keys are {', '.join(values) or 'none'}")
        if known is None and sign == "-":
            raise BadAttribute(f"only add attribute is supported while creating topic. key: {key}")
        if known is not None and key in _FIXED:
            raise BadAttribute(f"attempt to update an unchangeable attribute. key: {key}")
        if sign == "-":
            if key not in found:
                raise BadAttribute(f"attempt to delete a nonexistent key: {key}")
            del found[key]
        elif value not in values[key]:
            raise BadAttribute(f"{key} is {value}: the values are {', '.join(values[key])}")
        else:
            found[key] = value
    return found
