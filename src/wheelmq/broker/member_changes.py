"""Notify the members of a consumer group when the group gains or loses a member."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from wheelmq.broker.calls import Calls
from wheelmq.broker.connection import Connection
from wheelmq.broker.settings import ConsumptionSettings
from wheelmq.broker.state.clients import Clients
from wheelmq.broker.state.consumer_filters import ConsumerFilters
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command

CLIENTS_EXPIRE_MS: Final = 10_000


class MemberChanges:
    def __init__(
        self, clients: Clients, consumer_filters: ConsumerFilters, calls: Calls, settings: ConsumptionSettings
    ) -> None:
        self._clients = clients
        self._consumer_filters = consumer_filters
        self._calls = calls
        self._settings = settings
        self._changed: dict[str, Connection | None] = {}

    def note_change(self, group: str, by: Connection | None = None) -> None:
        """Note that members of a clustering group must rebalance: the next `notify_members` notifies all of them.

        A member that caused the change itself (`by`) is notified now, before its answer, as in RocketMQ.
        """
        if self._settings.notify_members_changed:
            self._changed[group] = by
            self._notify(group, [] if by is None else [by])

    def note_left(self, groups: Iterable[str], *, notify: bool = True) -> None:
        """Note that each of the groups lost a member, and forget the filters of a group without members."""
        for group in groups:
            if group not in self._clients.consumers:
                self._consumer_filters.unregister(group)
            if notify:
                self.note_change(group)

    def drop_silent(self, monotonic_ms: int) -> None:
        """Close the connections of clients without a heartbeat for too long. Call it every `CLIENTS_EXPIRE_MS`."""
        connections, groups = self._clients.expire(monotonic_ms - self._settings.client_expiry_ms)
        for connection in connections:
            connection.close()
        self.note_left(groups)

    def notify_members(self) -> None:
        """Notify the members of all groups that changed since the last call."""
        changed, self._changed = self._changed, {}
        for group, notified in changed.items():
            found = self._clients.consumers.get(group)
            members = {} if found is None else {id(one.connection): one.connection for one in found.clients.values()}
            self._notify(group, [one for one in members.values() if one is not notified])

    def _notify(self, group: str, members: list[Connection]) -> None:
        found = self._clients.consumers.get(group)
        for connection in members if found is not None and found.message_model != "BROADCASTING" else ():
            ext = {"consumerGroup": group}
            self._calls.send_oneway(connection, Command(code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext=ext))
