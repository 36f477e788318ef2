"""The keys of Apache RocketMQ 5.3.3's broker.conf and namesrv.conf, and the treatment of each.

The rows are in `*_keys.py`, one module per class of Apache. docs/operations/settings.md is generated from them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Treatment(StrEnum):
    HONOURED = "honoured"
    NO_EFFECT = "no effect"
    """Accepted. A value other than Apache's default is logged at the start."""
    REFUSED = "refused"
    """A value other than Apache's default ends the start: ignoring it would lose data or leave access open."""


class Kind(StrEnum):
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    TEXT = "String"


class ApacheKey(NamedTuple):
    name: str
    kind: Kind
    default: str
    """Apache's default as written. A default that depends on the machine is described between < and >."""
    treatment: Treatment
    ours: str = ""
    """The setting that an honoured key sets. The schema fills it in."""
    why: str = ""
    """The reason why the key is not honoured; for a refused key, also the remedy."""
    unit: str = ""


def honoured(name: str, kind: Kind, default: str, unit: str = "") -> ApacheKey:
    """Return a row for a key that a setting declares as its own."""
    return ApacheKey(name, kind, default, Treatment.HONOURED, unit=unit)


def no_effect(name: str, kind: Kind, default: str, why: str, unit: str = "") -> ApacheKey:
    """Return a row for a key without effect, which the start logs."""
    return ApacheKey(name, kind, default, Treatment.NO_EFFECT, why=why, unit=unit)


def refused(name: str, kind: Kind, default: str, why: str, unit: str = "") -> ApacheKey:
    """Return a row for a key that ends the start."""
    return ApacheKey(name, kind, default, Treatment.REFUSED, why=why, unit=unit)


SECRETS: Final = frozenset(
    {
        "initAuthenticationUser",
        "innerClientAuthenticationCredentials",
        "metricsGrpcExporterHeader",
        "socksProxyConfig",
        "tls.client.keyPassword",
        "tls.server.keyPassword",
    }
)
"""Keys whose values are never printed, returned or taken from a command line, which other users can read."""
