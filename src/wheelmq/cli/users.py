"""`wheelmq users`: the users of a broker with authentication."""

from __future__ import annotations

from typing import Final

import click

from wheelmq.cli.access_requests import AccessPlace, AccessRequests, offline, place_options
from wheelmq.cli.credentials import ask_secret
from wheelmq.cli.errors import plain_errors
from wheelmq.cli.tables import json_option, print_structs

FIELDS: Final = ("username", "userType", "userStatus")
"""The fields of an object of `wheelmq users list --json`, named as in the requests of Apache RocketMQ."""


@click.group(name="users", short_help="Add, change, list and remove the users of brokers.")
def command() -> None:
    """Add, change, list and remove users. docs/operations/access.md describes them.

    Secrets come from the terminal or from the first line of the standard input. The command itself signs its requests
    with the access key in WHEELMQ_ACCESS_KEY and WHEELMQ_SECRET_KEY, or in the file that WHEELMQ_CREDENTIALS names.
    """


@command.command(name="add")
@click.argument("name")
@click.option("--super", "is_super", is_flag=True, help="A super user may do everything, without access lists.")
@place_options
def add(name: str, is_super: bool, place: AccessPlace) -> None:
    """Add the user NAME. Its secret is asked for, or read from the standard input."""
    from wheelmq.auth.users import BadUser, UserKind, check_name, check_secret
    from wheelmq.formats.wire.codes import RequestCode

    kind = UserKind.SUPER if is_super else UserKind.NORMAL
    try:
        check_name(name)
        secret = ask_secret(f"Secret of {name}")
        check_secret(secret)
    except BadUser as problem:
        raise click.ClickException(str(problem)) from None
    if place.store is not None:
        with offline(place) as access:
            if access.users.get(name) is not None:
                raise click.ClickException(f"the user {name} exists: change it with `wheelmq users passwd {name}`")
            access.put_user(name, access.users.make(name, secret, kind))
    else:
        body = {"username": name, "password": secret, "userType": kind, "userStatus": "enable"}
        with plain_errors(place.namesrv):
            AccessRequests(place).ask_all(RequestCode.AUTH_CREATE_USER, body, username=name)
    rights = "may do everything" if is_super else f"has no rights yet: `wheelmq acl grant {name} ...` gives them"
    click.echo(f"Added: {name} {rights}.")


@command.command(name="passwd")
@click.argument("name")
@place_options
def passwd(name: str, place: AccessPlace) -> None:
    """Give the user NAME another secret."""
    from wheelmq.auth.users import BadUser, check_secret

    secret = ask_secret(f"New secret of {name}")
    try:
        check_secret(secret)
    except BadUser as problem:
        raise click.ClickException(str(problem)) from None
    _change(name, {"password": secret}, place)
    click.echo(f"Changed: {name} has another secret.")


@command.command(name="change")
@click.argument("name")
@click.option("--type", "kind", type=click.Choice(["Super", "Normal"], case_sensitive=False))
@click.option("--status", type=click.Choice(["enable", "disable"], case_sensitive=False))
@place_options
def change(name: str, kind: str | None, status: str | None, place: AccessPlace) -> None:
    """Change the type or the status of the user NAME. A disabled user cannot do anything."""
    facts = {name: value for name, value in (("userType", kind), ("userStatus", status)) if value is not None}
    if not facts:
        raise click.UsageError("give --type, --status or both")
    _change(name, facts, place)
    click.echo(f"Changed: {name}.")


def _change(name: str, facts: dict[str, str], place: AccessPlace) -> None:
    from wheelmq.auth.users import UserKind, UserStatus
    from wheelmq.formats.wire.codes import RequestCode

    if place.store is None:
        with plain_errors(place.namesrv):
            requests = AccessRequests(place)
            requests.ask_all(RequestCode.AUTH_UPDATE_USER, {"username": name, **facts}, username=name)
        return
    with offline(place) as access:
        if access.users.get(name) is None:
            raise click.ClickException(f"there is no user {name}")
        kind, status = facts.get("userType"), facts.get("userStatus")
        user = access.users.make(
            name,
            facts.get("password"),
            None if kind is None else UserKind(kind),
            None if status is None else UserStatus(status),
        )
        access.put_user(name, user)


@command.command(name="remove")
@click.argument("name")
@place_options
def remove(name: str, place: AccessPlace) -> None:
    """Remove the user NAME and its access list."""
    from wheelmq.formats.wire.codes import RequestCode

    if place.store is not None:
        with offline(place) as access:
            if access.users.get(name) is None:
                raise click.ClickException(f"there is no user {name}")
            access.put_user(name, None)
    else:
        with plain_errors(place.namesrv):
            requests = AccessRequests(place)
            if not requests.ask_first(RequestCode.AUTH_GET_USER, username=name).body:
                raise click.ClickException(f"there is no user {name}")
            requests.ask_all(RequestCode.AUTH_DELETE_USER, username=name)
    click.echo(f"Removed: {name} and its access list.")


@command.command(name="list")
@json_option
@place_options
def list_(as_json: bool, place: AccessPlace) -> None:
    """List the users, without their secrets."""
    users = _users(place)
    if as_json:
        print_structs(dict(zip(FIELDS, user, strict=True)) for user in users)
        return
    for name, kind, status in users:
        click.echo(f"{name:<24} {kind:<7} {status}")


def _users(place: AccessPlace) -> list[tuple[str, str, str]]:
    import msgspec

    from wheelmq.formats.wire.access import UserInfo
    from wheelmq.formats.wire.codes import RequestCode

    if place.store is not None:
        with offline(place) as access:
            return [(user.name, user.kind, user.status) for user in access.users.all()]
    with plain_errors(place.namesrv):
        body = AccessRequests(place).ask_first(RequestCode.AUTH_LIST_USER).body
    found = msgspec.json.decode(body, type=list[UserInfo]) if body else []
    return [(one.username or "", one.user_type or "", one.user_status or "") for one in found]
