"""The kinds of topics and groups, which lists use to leave out those of brokers and clients."""

from __future__ import annotations

from enum import StrEnum

import click

from wheelmq.formats import names


class NameKind(StrEnum):
    """The creator of a topic or group."""

    USER = "user"
    RETRY = "retry"
    """The topic of a group with its messages to deliver again."""
    DEAD_LETTERS = "dead letters"
    """The topic of a group with the messages that it could not process."""
    SYSTEM = "system"


every_option = click.option("--all", "every", is_flag=True, help="List also those of brokers and clients.")


def topic_kind(topic: str, system_topics: set[str]) -> NameKind:
    if topic.startswith(names.RETRY_PREFIX):
        return NameKind.RETRY
    if topic.startswith(names.DEAD_LETTER_PREFIX):
        return NameKind.DEAD_LETTERS
    return NameKind.SYSTEM if names.is_internal_topic(topic, system_topics) else NameKind.USER


def group_kind(group: str) -> NameKind:
    return NameKind.SYSTEM if names.may_always_pull(group) else NameKind.USER
