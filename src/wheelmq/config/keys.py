"""The keys of Apache RocketMQ 5.3.3's broker.conf and namesrv.conf, and what becomes of each.

The rows stand in `*_keys.py`, a module for each of Apache's classes; docs/operations/settings.md is made from them. A
row that is honoured names the field of ours (BrokerSettings, NameServerSettings) that it sets.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Treatment(StrEnum):
    """What a key does here."""

    HONOURED = "honoured"
    NO_EFFECT = "no effect"
    """Accepted; a value other than Apache's default is told at start."""
    REFUSED = "refused"
    """A value other than Apache's default ends the start: without what it asks for, something would be lost or open."""


class Kind(StrEnum):
    """The Java type of a key."""

    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    TEXT = "String"


class ApacheKey(NamedTuple):
    """A key by Apache's name."""

    name: str
    kind: Kind
    default: str
    """Apache's, as it is written; of what depends on the machine, in words between < and >."""
    treatment: Treatment
    ours: str = ""
    """The field of one that is honoured."""
    why: str = ""
    """Why one is not honoured; of one that is refused, what to do."""
    unit: str = ""


def honoured(name: str, kind: Kind, default: str, ours: str, unit: str = "") -> ApacheKey:
    """A row for what sets `ours`."""
    return ApacheKey(name, kind, default, Treatment.HONOURED, ours=ours, unit=unit)


def no_effect(name: str, kind: Kind, default: str, why: str, unit: str = "") -> ApacheKey:
    """A row for what is told at start."""
    return ApacheKey(name, kind, default, Treatment.NO_EFFECT, why=why, unit=unit)


def refused(name: str, kind: Kind, default: str, why: str, unit: str = "") -> ApacheKey:
    """A row for what ends the start."""
    return ApacheKey(name, kind, default, Treatment.REFUSED, why=why, unit=unit)


SECRETS: Final = frozenset(
    {"initAuthenticationUser", "innerClientAuthenticationCredentials", "metricsGrpcExporterHeader", "socksProxyConfig"}
)
"""Keys whose values are shown to nobody."""
