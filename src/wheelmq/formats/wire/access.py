"""Bodies of requests about users and access lists (RocketMQ: UserInfo, AclInfo)."""

from __future__ import annotations

from wheelmq.formats.wire.bodies import Body


class UserInfo(Body):
    """A user. Apache's answers contain the password, and those of WheelMQ do not."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class PolicyEntryInfo(Body):
    """The rights on one resource."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(Body):
    """Entries of one kind."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(Body):
    """The access list of a subject, such as `User:bob`."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None
