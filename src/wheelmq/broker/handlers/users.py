"""AUTH_CREATE_USER to AUTH_LIST_USER (RocketMQ: AdminBrokerProcessor). No answer contains a password."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from wheelmq.auth.sealing import KeyProblem
from wheelmq.auth.users import BadUser, User, UserKind, UserStatus
from wheelmq.broker.access import AccessControl
from wheelmq.broker.answers import Answer, PeerError, reply
from wheelmq.broker.handler_table import HandlerTable
from wheelmq.broker.request import Request
from wheelmq.broker.saved_answers import when_saved
from wheelmq.broker.state.access_tables import AccessTables
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.access import UserInfo
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.headers import UserFilterHeader, UserHeader

HANDLERS: Final[HandlerTable[[AccessControl]]] = HandlerTable()


@HANDLERS.serves(RequestCode.AUTH_CREATE_USER)
def create_user(request: Request, access: AccessControl) -> Answer:
    """Create a user. Only a super user creates super users."""
    name, info = _asked(request)
    tables, kind = access.tables, _kind(info)
    if kind is UserKind.SUPER and not _is_super(request, access):
        raise PeerError(ResponseCode.SYSTEM_ERROR, "The super user can only be create by super user")
    if tables.users.get(name) is not None:
        raise PeerError(ResponseCode.NO_PERMISSION, "The user is existed")
    user = _made(lambda: tables.users.make(name, info.password or "", kind, _status(info)))
    return _stored(tables, name, user)


@HANDLERS.serves(RequestCode.AUTH_UPDATE_USER)
def update_user(request: Request, access: AccessControl) -> Answer:
    """Change the password, the type or the status of a user. Only a super user changes super users."""
    name, info = _asked(request)
    tables, kind = access.tables, _kind(info)
    may_touch_all = _is_super(request, access)
    if kind is UserKind.SUPER and not may_touch_all:
        raise PeerError(ResponseCode.SYSTEM_ERROR, "The super user can only be update by super user")
    known = tables.users.get(name)
    if known is None:
        raise PeerError(ResponseCode.NO_PERMISSION, "The user is not exist")
    if known.is_super and not may_touch_all:
        raise PeerError(ResponseCode.NO_PERMISSION, "The super user can only be update by super user")
    user = _made(lambda: tables.users.make(name, info.password or None, kind, _status(info)))
    return _stored(tables, name, user)


@HANDLERS.serves(RequestCode.AUTH_DELETE_USER)
def delete_user(request: Request, access: AccessControl) -> Answer:
    """Delete a user and its access list. Only a super user deletes super users."""
    name, tables = _name(request), access.tables
    known = tables.users.get(name)
    if known is None:
        return reply()
    if known.is_super and not _is_super(request, access):
        raise PeerError(ResponseCode.NO_PERMISSION, "The super user can only be update by super user")
    return _deleted(tables, name)


@HANDLERS.serves(RequestCode.AUTH_GET_USER)
def get_user(request: Request, access: AccessControl) -> Answer:
    """Return a user without its password. The body is empty if there is none."""
    user = access.tables.users.get(_name(request))
    return reply(body=b"" if user is None else bodies.write(_info(user)))


@HANDLERS.serves(RequestCode.AUTH_LIST_USER)
def list_users(request: Request, access: AccessControl) -> Answer:
    """Return the users whose names contain the filter, without their passwords."""
    text = request.header(UserFilterHeader).filter
    found = [_info(user) for user in access.tables.users.all() if text in user.name]
    return reply(body=msgspec.json.encode([_without_none(one) for one in found]) if found else b"")


def _asked(request: Request) -> tuple[str, UserInfo]:
    return _name(request), bodies.read(request.body, UserInfo)


def _name(request: Request) -> str:
    name = request.header(UserHeader).username
    if not name.strip():
        raise PeerError(ResponseCode.INVALID_PARAMETER, "The username is blank")
    return name


def _is_super(request: Request, access: AccessControl) -> bool:
    """Return whether the sender may change super users. Without authentication, each sender of this machine may."""
    if not access.is_on:
        return True
    user = access.tables.users.find(request.connection.user or "")
    return user is not None and user.is_super


def _kind(info: UserInfo) -> UserKind | None:
    if not info.user_type:
        return None
    found = next((kind for kind in UserKind if kind.lower() == info.user_type.lower()), None)
    if found is None:
        raise PeerError(ResponseCode.INVALID_PARAMETER, f"userType is {info.user_type!r}: write {', '.join(UserKind)}")
    return found


def _status(info: UserInfo) -> UserStatus | None:
    if not info.user_status:
        return None
    found = next((status for status in UserStatus if status.lower() == info.user_status.lower()), None)
    if found is None:
        remark = f"userStatus is {info.user_status!r}: write {', '.join(UserStatus)}"
        raise PeerError(ResponseCode.INVALID_PARAMETER, remark)
    return found


def _made(make: Callable[[], User]) -> User:
    """Return the user that `make` makes. Raises PeerError."""
    try:
        return make()
    except BadUser as problem:
        raise PeerError(ResponseCode.NO_PERMISSION, str(problem)) from None
    except KeyProblem as problem:
        raise PeerError(ResponseCode.SYSTEM_ERROR, str(problem)) from None


def _stored(tables: AccessTables, name: str, user: User | None) -> Answer:
    return when_saved(tables.users_file, lambda: tables.change_user(name, user), reply)


def _deleted(tables: AccessTables, name: str) -> Answer:
    """Delete the list of a user, and the user once that is on disk.

    In the other order, a kill could leave a list to a later user with the same name.
    """
    if tables.acls.get(name) is None:
        return _stored(tables, name, None)
    return when_saved(tables.acls_file, lambda: tables.change_acl(name, None), lambda: _deleted(tables, name))


def _info(user: User) -> UserInfo:
    return UserInfo(username=user.name, user_type=user.kind, user_status=user.status)


def _without_none(info: UserInfo) -> dict[str, object]:
    return {name: value for name, value in msgspec.to_builtins(info).items() if value is not None}
