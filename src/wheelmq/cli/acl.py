"""`wheelmq acl`: the access lists of users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from wheelmq.cli.access_requests import AccessPlace, AccessRequests, offline, place_options
from wheelmq.cli.errors import plain_errors
from wheelmq.cli.tables import json_option, print_structs

if TYPE_CHECKING:
    pass


@click.group(name="acl", short_help="Grant, list and revoke the rights of users.")
def command() -> None:
    """Grant, list and revoke rights. docs/operations/access.md describes resources and actions."""


@command.command(name="grant")
@click.argument("name")
@click.argument("resource")
@click.argument("actions", nargs=-1, required=True)
@click.option("--deny", is_flag=True, help="Deny the actions instead of allowing them. Deny decides over Allow.")
@click.option("--ip", "addresses", multiple=True, help="Only from this address or block, such as 10.1.0.0/16.")
@click.option("--default", "is_default", is_flag=True, help="Count only if no other right of the user fits.")
@place_options
def grant(
    name: str,
    resource: str,
    actions: tuple[str, ...],
    deny: bool,
    addresses: tuple[str, ...],
    is_default: bool,
    place: AccessPlace,
) -> None:
    """Let the user NAME take ACTIONS on RESOURCE.

    RESOURCE is Topic:NAME, Group:NAME or Cluster:NAME. A name may end in *. ACTIONS are Pub, Sub, Create, Update,
    Delete, Get, List or All. A second grant for the same resource replaces the first one.
    """
    from wheelmq.auth.acls import acl_body, make_entry
    from wheelmq.auth.policies import AccessList, PolicyKind
    from wheelmq.formats.wire.codes import RequestCode

    kind = PolicyKind.DEFAULT if is_default else PolicyKind.CUSTOM
    decision = "Deny" if deny else "Allow"
    try:
        entry = make_entry(resource, list(actions), decision, list(addresses))
    except ValueError as problem:
        raise click.ClickException(str(problem)) from None
    if place.store is not None:
        with offline(place) as access:
            if access.users.get(name) is None:
                raise click.ClickException(f"there is no user {name}: `wheelmq users add {name}` adds it")
            access.put_acl(name, access.acls.merged(name, {kind: [entry]}))
    else:
        granted = AccessList()
        granted.merge(kind, [entry])
        body = acl_body(name, granted)
        with plain_errors(place.namesrv):
            AccessRequests(place).ask_all(RequestCode.AUTH_UPDATE_ACL, body, subject=f"User:{name}")
    click.echo(f"{name}: {entry_text(entry.resource.text, sorted(entry.actions), decision, list(addresses))}")


@command.command(name="revoke")
@click.argument("name")
@click.argument("resource", required=False)
@place_options
def revoke(name: str, resource: str | None, place: AccessPlace) -> None:
    """Revoke the rights of the user NAME on RESOURCE, or all of its rights."""
    from wheelmq.auth.policies import Resource
    from wheelmq.formats.wire.codes import RequestCode

    try:
        wanted = None if resource is None else Resource.parse(resource)
    except ValueError as problem:
        raise click.ClickException(str(problem)) from None
    if place.store is not None:
        with offline(place) as access:
            if access.acls.get(name) is None:
                raise click.ClickException(f"{name} has no rights")
            access.put_acl(name, access.acls.without(name, None, wanted))
    else:
        with plain_errors(place.namesrv):
            requests = AccessRequests(place)
            requests.ask_all(
                RequestCode.AUTH_DELETE_ACL, subject=f"User:{name}", resource=None if wanted is None else wanted.text
            )
    click.echo(f"Revoked: {name} has no right on {'anything' if wanted is None else wanted.text} any more.")


@command.command(name="list")
@click.argument("name", required=False)
@json_option
@place_options
def list_(name: str | None, as_json: bool, place: AccessPlace) -> None:
    """List the rights of the user NAME, or of all users."""
    if as_json:
        print_structs(_lists(name, place))
        return
    for found in _lists(name, place):
        click.echo(str(found["subject"]).removeprefix("User:"))
        for policy in found["policies"]:
            only = "  (default)" if policy["policyType"] == "Default" else ""
            for entry in policy["entries"]:
                text = entry_text(entry["resource"], entry["actions"], entry["decision"], entry.get("sourceIps") or [])
                click.echo(f"  {text}{only}")


def entry_text(resource: str, actions: list[str], decision: str, addresses: list[str]) -> str:
    """Return an entry as text for a person."""
    where = f" from {', '.join(addresses)}" if addresses else ""
    return f"{decision.lower():<5} {', '.join(actions)} on {resource}{where}"


def _lists(name: str | None, place: AccessPlace) -> Iterator[dict[str, Any]]:
    """Yield the lists in the form of the answer to AUTH_LIST_ACL."""
    import msgspec

    from wheelmq.auth.acls import acl_body
    from wheelmq.formats.wire.codes import RequestCode

    if place.store is not None:
        with offline(place) as access:
            yield from [acl_body(one, found) for one, found in access.acls.all().items() if name in (None, one)]
        return
    with plain_errors(place.namesrv):
        body = AccessRequests(place).ask_first(RequestCode.AUTH_LIST_ACL).body
    found: list[dict[str, Any]] = msgspec.json.decode(body) if body else []
    yield from (one for one in found if name is None or one["subject"] == f"User:{name}")
