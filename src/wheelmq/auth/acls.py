"""The access lists by user. config/acls.json stores them."""

from __future__ import annotations

from typing import Any, Final

from wheelmq.auth.policies import AccessList, AclEntry, Action, Decision, PolicyKind, Resource, check_network
from wheelmq.config.errors import ConfigError
from wheelmq.formats.wire.bodies import Body

ENTRIES_MAX: Final = 1000
"""Most entries of one user."""


class BadAcl(ConfigError):
    """A list cannot be stored like this."""


class StoredEntry(Body):
    """An entry in acls.json."""

    resource: str
    actions: list[str]
    decision: str
    source_ips: list[str] = []


class StoredList(Body):
    """The list of one user in acls.json."""

    custom: list[StoredEntry] = []
    default: list[StoredEntry] = []


class StoredAcls(Body):
    """acls.json."""

    acls: dict[str, StoredList] = {}


class Acls:
    """The lists by the name of the user. `version` counts changes: verdicts of another version do not count."""

    def __init__(self, stored: StoredAcls | None) -> None:
        """Raises BadAcl if an entry is not valid: without it, a user might have rights that were denied."""
        self.version = 0
        self._table: dict[str, AccessList] = {}
        self.replace_all(stored or StoredAcls())

    def replace_all(self, stored: StoredAcls) -> None:
        """Load all lists again, or none of them. Raises BadAcl."""
        fresh = {}
        for name, one in stored.acls.items():
            try:
                fresh[name] = AccessList(list(map(_entry, one.custom)), list(map(_entry, one.default)))
            except ValueError as error:
                raise BadAcl(f"the list of {name!r} in acls.json: {error}") from None
        self._table = fresh
        self.version += 1

    def get(self, name: str) -> AccessList | None:
        return self._table.get(name)

    def all(self) -> dict[str, AccessList]:
        """Return the lists by the name of their user, sorted. Do not change them."""
        return {name: self._table[name] for name in sorted(self._table)}

    def merged(self, name: str, fresh: dict[PolicyKind, list[AclEntry]]) -> AccessList:
        """Return the list of a user with more entries. Does not store it. Raises BadAcl if it is too long."""
        known = self._table.get(name) or AccessList()
        found = AccessList(list(known.custom), list(known.default))
        for kind, entries in fresh.items():
            found.merge(kind, entries)
        if len(found.custom) + len(found.default) > ENTRIES_MAX:
            raise BadAcl(f"the list of {name} would exceed {ENTRIES_MAX} entries: use prefixes such as Topic:A*")
        return found

    def without(self, name: str, kind: PolicyKind | None, resource: Resource | None) -> AccessList | None:
        """Return the list of a user without the entries of a resource, or None if nothing is left."""
        known = self._table.get(name)
        if known is None or resource is None:
            return None
        found = AccessList(list(known.custom), list(known.default))
        found.remove(kind, resource)
        return None if found.is_empty else found

    def put(self, name: str, found: AccessList | None) -> None:
        """Store the list of a user; None removes it."""
        if found is None:
            self._table.pop(name, None)
        else:
            self._table[name] = found
        self.version += 1

    def content(self) -> StoredAcls:
        """Return the content of acls.json."""
        return StoredAcls(
            acls={
                name: StoredList(custom=list(map(_stored, one.custom)), default=list(map(_stored, one.default)))
                for name, one in self.all().items()
            }
        )


def acl_body(name: str, found: AccessList, resource_filter: str = "") -> dict[str, Any]:
    """Return a list as requests and answers have it (RocketMQ: AclInfo).

    It has only the entries whose resources contain a text, and no policy without an entry.
    """
    policies = []
    for kind in PolicyKind:
        entries = [_entry_body(one) for one in found.entries(kind) if resource_filter in one.resource.text]
        if entries:
            policies.append({"policyType": kind, "entries": entries})
    return {"subject": f"User:{name}", "policies": policies}


def _entry_body(entry: AclEntry) -> dict[str, Any]:
    """Return an entry. An entry for all addresses has no `sourceIps`, as in Apache's answers."""
    addresses = {"sourceIps": list(entry.source_ips)} if entry.source_ips else {}
    return {
        "resource": entry.resource.text,
        "actions": sorted(entry.actions),
        **addresses,
        "decision": entry.decision,
    }


def make_entry(resource: str, actions: list[str], decision: str, source_ips: list[str]) -> AclEntry:
    """Return the entry in these texts. Raises ValueError with the remedy."""
    if not actions:
        raise ValueError("The actions is empty.")
    return AclEntry(
        Resource.parse(resource),
        frozenset(map(action_of, actions)),
        _decision(decision),
        tuple(map(check_network, source_ips)),
    )


def action_of(text: str) -> Action:
    """Return the action of a text, in any case. Raises ValueError."""
    found = _ACTIONS.get(text.strip().lower())
    if found is None:
        raise ValueError(f"{text[:50]!r} is no action: write {', '.join(Action)}")
    return found


_ACTIONS: Final = {action.lower(): action for action in Action}
_DECISIONS: Final = {decision.lower(): decision for decision in Decision}


def _decision(text: str) -> Decision:
    found = _DECISIONS.get(text.strip().lower())
    if found is None:
        raise ValueError("The decision is null or illegal.")
    return found


def _entry(stored: StoredEntry) -> AclEntry:
    return make_entry(stored.resource, stored.actions, stored.decision, stored.source_ips)


def _stored(entry: AclEntry) -> StoredEntry:
    return StoredEntry(
        resource=entry.resource.text,
        actions=sorted(entry.actions),
        decision=entry.decision,
        source_ips=list(entry.source_ips),
    )
