"""What push and pull consumers tell of themselves, and where they keep how far they are."""

from __future__ import annotations

from wheelmq.client.consumer_settings import GroupSettings, Model
from wheelmq.client.group import Group
from wheelmq.client.offsets import BrokerOffsets, LocalOffsets, OffsetStore
from wheelmq.client.session import Session
from wheelmq.formats.wire.bodies import ConsumerData, Heartbeat


def heartbeat(group: Group, consume_type: str) -> Heartbeat:
    """What brokers are told of a member of `group`. One that was assigned its queues takes no part in sharing them."""
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
    """The store that goes with the model."""
    if settings.model is Model.CLUSTERING:
        return BrokerOffsets(session, group)
    from wheelmq.system.disk import Disk  # brings NumPy, for which only a broadcast should wait

    return LocalOffsets(settings.offsets_folder, group, session, Disk())
