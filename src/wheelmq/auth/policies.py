"""Access lists: what the entries of a user say about an action on a resource. Pure (RocketMQ: rocketmq-auth).

Several entries may fit. The most exact resource decides: a name, then the longest prefix, then any name. Deny decides
over Allow. This is the order of Apache RocketMQ 5.4.0; that of 5.3.3 depends on the order of the entries, and lets a
shorter prefix decide over a longer one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

ANY_NAME: Final = "*"


class ResourceKind(StrEnum):
    """The kind of a resource, as access lists write it."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    """Apache's lists may have it. No request needs it."""
    ANY = "Any"
    """Written as `*`: all resources of all kinds."""


class Action(StrEnum):
    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Decision(StrEnum):
    ALLOW = "Allow"
    DENY = "Deny"


class PolicyKind(StrEnum):
    """Default policies count only if no entry of a custom policy fits."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class Resource(NamedTuple):
    """One resource, or a pattern of a list: a name that ends in `*` covers all names with that beginning."""

    kind: ResourceKind
    name: str

    @classmethod
    def parse(cls, text: str) -> Resource:
        """Return the resource of a text such as `Topic:Orders`. Raises ValueError."""
        if text.strip() == ANY_NAME:
            return cls(ResourceKind.ANY, ANY_NAME)
        word, sign, name = text.partition(":")
        kind = _KINDS.get(word.strip().lower())
        if not sign or kind is None or not name.strip():
            raise ValueError(
                f"{text[:200]!r} is no resource: write Topic:NAME, Group:NAME, Cluster:NAME, or * for all of them. A "
                "name may end in *"
            )
        return cls(kind, name.strip())

    @property
    def text(self) -> str:
        return ANY_NAME if self.kind is ResourceKind.ANY else f"{self.kind}:{self.name}"

    @property
    def exactness(self) -> tuple[int, int]:
        """The rank of a pattern: a name is above each prefix, and a longer prefix is above a shorter one."""
        if not self.name.endswith(ANY_NAME):
            return 2, 0
        return (1, len(self.name)) if self.name != ANY_NAME else (0, 0 if self.kind is ResourceKind.ANY else 1)

    def covers(self, other: Resource) -> bool:
        """Return whether this pattern covers the resource `other`."""
        if self.kind is not ResourceKind.ANY and self.kind is not other.kind:
            return False
        if self.name.endswith(ANY_NAME):
            return other.name.startswith(self.name[:-1])
        return self.name == other.name


_KINDS: Final = {kind.lower(): kind for kind in ResourceKind if kind is not ResourceKind.ANY}


class AclEntry(msgspec.Struct, frozen=True):
    """One line of a list. Without `source_ips` it counts for each address."""

    resource: Resource
    actions: frozenset[Action]
    decision: Decision
    source_ips: tuple[str, ...] = ()

    def fits(self, resource: Resource, actions: frozenset[Action], address: str) -> bool:
        """Return whether the entry decides about one of the `actions` on `resource` from `address`."""
        if not self.resource.covers(resource):
            return False
        if Action.ALL not in self.actions and not self.actions & actions:
            return False
        return not self.source_ips or is_in(address, self.source_ips)


class AccessList(msgspec.Struct):
    """The entries of one user, by the kind of their policy (RocketMQ: Acl)."""

    custom: list[AclEntry] = []
    default: list[AclEntry] = []

    def entries(self, kind: PolicyKind) -> list[AclEntry]:
        return self.custom if kind is PolicyKind.CUSTOM else self.default

    def merge(self, kind: PolicyKind, fresh: Iterable[AclEntry]) -> None:
        """Add entries. An entry replaces the one with the same resource in the same policy."""
        entries = self.entries(kind)
        for entry in fresh:
            place = next((i for i, known in enumerate(entries) if known.resource == entry.resource), None)
            if place is None:
                entries.append(entry)
            else:
                entries[place] = entry

    def remove(self, kind: PolicyKind | None, resource: Resource) -> None:
        """Remove the entries of `resource`, in one policy or in both."""
        for one in PolicyKind if kind is None else (kind,):
            entries = self.entries(one)
            entries[:] = [entry for entry in entries if entry.resource != resource]

    @property
    def is_empty(self) -> bool:
        return not self.custom and not self.default

    def decide(self, resource: Resource, actions: frozenset[Action], address: str) -> Decision | None:
        """Return the decision about one of the `actions` on `resource`, or None if no entry fits."""
        for entries in (self.custom, self.default):
            fitting = [entry for entry in entries if entry.fits(resource, actions, address)]
            if fitting:
                return max(fitting, key=_rank).decision
        return None


def _rank(entry: AclEntry) -> tuple[tuple[int, int], bool]:
    return entry.resource.exactness, entry.decision is Decision.DENY


def is_in(address: str, networks: Iterable[str]) -> bool:
    """Return whether `address` is one of `networks`, which are addresses or CIDR blocks."""
    return any(_address(address) in _network(network) for network in networks)


@lru_cache(10_000)
def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    found = ipaddress.ip_address(text)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


@lru_cache(10_000)
def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network(text.strip(), strict=False)


def check_network(text: str) -> str:
    """Return `text` if it is an address or a CIDR block. Raises ValueError."""
    try:
        _network(text)
    except ValueError:
        raise ValueError(f"{text[:100]!r} is neither an IP address nor a block such as 10.1.0.0/16") from None
    return text.strip()
