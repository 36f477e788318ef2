"""AUTH_CREATE_ACL to AUTH_LIST_ACL (RocketMQ: AdminBrokerProcessor)."""

from __future__ import annotations

from typing import Final

import msgspec

from wheelmq.auth.acls import BadAcl, acl_body, make_entry
from wheelmq.auth.policies import AclEntry, PolicyKind, Resource
from wheelmq.broker.access import AccessControl
from wheelmq.broker.answers import Answer, PeerError, reply
from wheelmq.broker.handler_table import HandlerTable
from wheelmq.broker.request import Request
from wheelmq.broker.saved_answers import when_saved
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.access import AclInfo, PolicyEntryInfo
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.headers import AclFilterHeader, SubjectHeader

HANDLERS: Final[HandlerTable[[AccessControl]]] = HandlerTable()
_USER: Final = "User:"


@HANDLERS.serves(RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL)
def put_acl(request: Request, access: AccessControl) -> Answer:
    """Add entries to the access list of a user. An entry replaces the one with the same resource and policy."""
    name, tables = _subject(request), access.tables
    if tables.users.get(name) is None:
        raise PeerError(ResponseCode.NO_PERMISSION, f"The subject of {_USER}{name} is not exist.")
    fresh = _entries(bodies.read(request.body, AclInfo))
    try:
        found = tables.acls.merged(name, fresh)
    except BadAcl as problem:
        raise PeerError(ResponseCode.INVALID_PARAMETER, str(problem)) from None
    return when_saved(tables.acls_file, lambda: tables.change_acl(name, found), reply)


@HANDLERS.serves(RequestCode.AUTH_DELETE_ACL)
def delete_acl(request: Request, access: AccessControl) -> Answer:
    """Delete the entries of one resource from the access list of a user, or the whole list."""
    name, header, tables = _subject(request), request.header(SubjectHeader), access.tables
    if tables.acls.get(name) is None:
        raise PeerError(ResponseCode.NO_PERMISSION, "The acl is not exist.")
    kind = _policy_kind(header.policy_type) if header.policy_type else None
    resource = _parsed(header.resource) if header.resource else None
    found = tables.acls.without(name, kind, resource)
    return when_saved(tables.acls_file, lambda: tables.change_acl(name, found), reply)


@HANDLERS.serves(RequestCode.AUTH_GET_ACL)
def get_acl(request: Request, access: AccessControl) -> Answer:
    """Return the access list of a user."""
    name = _subject(request)
    if access.tables.users.get(name) is None:
        raise PeerError(ResponseCode.NO_PERMISSION, "The subject is not exist.")
    found = access.tables.acls.get(name)
    return reply(body=b"" if found is None else msgspec.json.encode(acl_body(name, found)))


@HANDLERS.serves(RequestCode.AUTH_LIST_ACL)
def list_acls(request: Request, access: AccessControl) -> Answer:
    """Return the access lists whose subject and resources contain the filters."""
    header = request.header(AclFilterHeader)
    shown = [
        acl_body(name, found, header.resource_filter)
        for name, found in access.tables.acls.all().items()
        if header.subject_filter in f"{_USER}{name}"
    ]
    listed = [one for one in shown if one["policies"]]
    return reply(body=msgspec.json.encode(listed) if listed else b"")


def _subject(request: Request) -> str:
    """Return the name of the user in the subject. Raises PeerError."""
    subject = request.header(SubjectHeader).subject
    if not subject.strip():
        raise PeerError(ResponseCode.INVALID_PARAMETER, "The subject is blank")
    word, sign, name = subject.partition(":")
    if not sign or word.lower() != "user" or not name.strip():
        raise PeerError(ResponseCode.INVALID_PARAMETER, f"the subject is {subject[:200]!r}: write {_USER}NAME")
    return name


def _policy_kind(text: str) -> PolicyKind:
    found = next((kind for kind in PolicyKind if kind.lower() == text.lower()), None)
    if found is None:
        remark = f"policyType is {text[:50]!r}: write {', '.join(PolicyKind)}"
        raise PeerError(ResponseCode.INVALID_PARAMETER, remark)
    return found


def _parsed(text: str) -> Resource:
    try:
        return Resource.parse(text)
    except ValueError as problem:
        raise PeerError(ResponseCode.INVALID_PARAMETER, str(problem)) from None


def _entries(info: AclInfo) -> dict[PolicyKind, list[AclEntry]]:
    """Return the entries in a body, by the kind of their policy. Raises PeerError, with the remarks of Apache."""
    if not info.policies:
        raise PeerError(ResponseCode.NO_PERMISSION, "The policies is empty.")
    found: dict[PolicyKind, list[AclEntry]] = {}
    for policy in info.policies:
        kind = _policy_kind(policy.policy_type) if policy.policy_type else PolicyKind.CUSTOM
        if not policy.entries:
            raise PeerError(ResponseCode.NO_PERMISSION, "The policy entries is empty.")
        found.setdefault(kind, []).extend(map(_entry, policy.entries))
    return found


def _entry(info: PolicyEntryInfo) -> AclEntry:
    if not info.resource:
        raise PeerError(ResponseCode.NO_PERMISSION, "The resource is null.")
    try:
        return make_entry(info.resource, info.actions or [], info.decision or "", info.source_ips or [])
    except ValueError as problem:
        raise PeerError(ResponseCode.NO_PERMISSION, str(problem)) from None
