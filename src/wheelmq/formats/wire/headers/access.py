"""Headers of requests about users and access lists."""

from __future__ import annotations

from wheelmq.formats.wire.headers.base import Header


class UserHeader(Header):
    """AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER, AUTH_GET_USER."""

    username: str = ""


class UserFilterHeader(Header):
    """AUTH_LIST_USER: the users whose names contain `filter`."""

    filter: str = ""


class SubjectHeader(Header):
    """AUTH_CREATE_ACL, AUTH_UPDATE_ACL, AUTH_DELETE_ACL, AUTH_GET_ACL."""

    subject: str = ""
    policy_type: str | None = None
    resource: str | None = None


class AclFilterHeader(Header):
    """AUTH_LIST_ACL: the lists of the subjects that contain a text, with the resources that contain another."""

    subject_filter: str = ""
    resource_filter: str = ""
