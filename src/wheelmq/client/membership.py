"""Session, heartbeat and offset store of push and pull consumers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wheelmq.client.connections import Answering
from wheelmq.client.consumer_settings import GroupSettings, Model
from wheelmq.client.group import GroupMember
from wheelmq.client.offsets import BrokerOffsets, LocalOffsets, OffsetStore
from wheelmq.client.session import Session
from wheelmq.formats.wire.bodies import ConsumerData, Heartbeat
from wheelmq.system.clock import Clock
from wheelmq.system.tls_client import Tls


def member_session(
    namesrv: str | Sequence[str],
    settings: GroupSettings,
    clock: Clock,
    *,
    beat: Callable[[], Heartbeat],
    on_request: Answering,
    tls: Tls | None,
) -> Session:
    """Return the session of a group member. A broadcasting member keeps its client id and offsets over restarts."""
    return Session(
        namesrv,
        clock=clock,
        beat=beat,
        on_request=on_request,
        keep_alive_ms=settings.keep_alive_ms,
        timeout_s=settings.timeout_ms / 1000,
        access_key=settings.access_key,
        tls=tls,
        instance=settings.instance if settings.model is Model.BROADCASTING else None,
    )


def heartbeat(group: GroupMember, consume_type: str) -> Heartbeat:
    """Return the heartbeat of a member of `group`. A member with assigned queues takes no part in rebalancing."""
    is_sharing = group.assigned is None
    data = ConsumerData(
        group_name=group.name,
        consume_type=consume_type,
        message_model=group.settings.model.value,
        consume_from_where=group.settings.start_from.value,
        subscription_data_set=list(group.subscriptions.values()) if is_sharing else [],
    )
    return Heartbeat(client_id=group.session.client_id, consumer_data_set=[data])


def offset_store(session: Session, group: str, settings: GroupSettings) -> OffsetStore:
    if settings.model is Model.CLUSTERING:
        return BrokerOffsets(session, group)
    return LocalOffsets(settings.offsets_folder, group, session)
