"""The rights that a request needs: actions on the resources that its header, its body or its message names.

A topic that begins with %RETRY% belongs to its group. A request that names no resource needs a pattern for all names,
such as `Topic:*`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, Protocol

import msgspec

from wheelmq.auth.policies import Action, Resource, ResourceKind
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message_id import parse_offset_message_id
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.frame import Command

Actions = frozenset[Action]
"""A request needs one of these actions, not all of them."""


class Right(NamedTuple):
    """One right that a request needs."""

    resource: Resource
    actions: Actions


class Surroundings(Protocol):
    """The facts of a server that rights depend on."""

    @property
    def cluster(self) -> str:
        """The name of the cluster, in the resource of administration."""
        ...

    def topic_at(self, position: int) -> str | None:
        """Return the topic of the message at a log position or an origin. For a parked message, its real topic."""
        ...


class Need(NamedTuple):
    """A kind of right that a request code needs, and how it is found in a request."""

    text: str
    """For the page on request codes."""
    rights: Callable[[Command, Surroundings], Iterable[Right]]


def _or(actions: Iterable[Action]) -> str:
    return " or ".join(actions)


def cluster(*actions: Action, of: str = "") -> Need:
    """Return the need of a request about the whole server. `of` is the field with the name of the cluster."""

    found = frozenset(actions)

    def rights(command: Command, here: Surroundings) -> Iterator[Right]:
        name = command.ext.get(of, here.cluster) if of else here.cluster
        yield cluster_right(name, found)

    place = f" ({of})" if of else ""
    return Need(f"Cluster{place}: {_or(actions)}", rights)


def pipeline() -> Need:
    """Return the need of the pipeline. No pattern of topics covers it."""

    return Need(f"Cluster {PIPELINE}: {Action.UPDATE}", lambda command, here: (PIPELINE_RIGHT,))


def replica() -> Need:
    """Return the need of a replica that copies all messages, or confirms its copy of them."""
    return Need(f"Cluster {REPLICATION}: {Action.GET}", lambda command, here: (REPLICATION_RIGHT,))


def replica_ticket() -> Need:
    """Return the need of a replica that wants a ticket for the HA port, and so all bytes of the log."""

    def rights(command: Command, here: Surroundings) -> Iterable[Right]:
        return (REPLICATION_RIGHT,) if command.ext.get("wantsTicket", "false") != "false" else ()

    return Need(f"with wantsTicket, Cluster {REPLICATION}: {Action.GET}", rights)


_SUB: Final = frozenset({Action.SUB})
PUB_ACTIONS: Final = frozenset({Action.PUB})
"""The actions of a send."""
REPLICATION: Final = "wheelmq_replication"
"""The name of the resource of replicas. A list grants it as `Cluster:wheelmq_replication`."""
REPLICATION_RIGHT: Final = Right(Resource(ResourceKind.CLUSTER, REPLICATION), frozenset({Action.GET}))
PIPELINE: Final = "wheelmq_pipeline"
"""The name of the resource of the pipeline. A list grants it as `Cluster:wheelmq_pipeline`."""
PIPELINE_RIGHT: Final = Right(Resource(ResourceKind.CLUSTER, PIPELINE), frozenset({Action.UPDATE}))


def cluster_right(name: str, actions: Actions) -> Right:
    return Right(Resource(ResourceKind.CLUSTER, name), actions)


def topic_right(topic: str, actions: Actions, retry: Actions | None = None) -> Right:
    """Return the right for a topic, or for the group of a retry topic. `retry` are the actions on that group."""
    if topic.startswith(names.RETRY_PREFIX):
        group = topic.removeprefix(names.RETRY_PREFIX)
        return Right(Resource(ResourceKind.GROUP, group), actions if retry is None else retry)
    return Right(Resource(ResourceKind.TOPIC, topic), actions)


def topic(
    field: str, *actions: Action, retry: tuple[Action, ...] = (), but: tuple[str, ...] = (), optional: bool = False
) -> Need:
    """Return the need for the topic in the header field `field`.

    `but` are topics without messages of clients, which need no right. An `optional` field may be missing.
    """

    of_topic, of_group = frozenset(actions), frozenset(retry or actions)

    def rights(command: Command, here: Surroundings) -> Iterator[Right]:
        name = command.ext.get(field, "")
        if (name or not optional) and name not in but:
            yield topic_right(name, of_topic, of_group)

    text = f"Topic ({field}): {_or(actions)}"
    return Need(f"{text}; of a retry topic, Group: {_or(retry)}" if retry else text, rights)


def cancelled_topic(field: str) -> Need:
    """Return the need for the topic whose delayed message a send cancels. `field` has the properties of the send.

    A cancel names that topic in its property, and may itself go to another topic.
    """

    def rights(command: Command, here: Surroundings) -> Iterator[Right]:
        text = command.ext.get(field, "")
        if props.TIMER_DEL_UNIQKEY in text:
            name, sign, _ = props.parse(text).get(props.TIMER_DEL_UNIQKEY, "").partition("+")
            if sign:  # without it, the message is in the topic of the cancel
                yield topic_right(name, PUB_ACTIONS, _SUB)

    return Need(f"Topic of a message that it cancels ({field}): {Action.PUB}", rights)


def group(field: str, *actions: Action, optional: bool = False) -> Need:
    """Return the need for the group in the header field `field`."""

    found = frozenset(actions)

    def rights(command: Command, here: Surroundings) -> Iterator[Right]:
        name = command.ext.get(field, "")
        if name or not optional:
            yield Right(Resource(ResourceKind.GROUP, name), found)

    return Need(f"Group ({field}): {_or(actions)}", rights)


def topic_or_cluster(field: str, *actions: Action) -> Need:
    """Return the need for the topic in `field`, or for the cluster if the request is about all topics."""

    found = frozenset(actions)

    def rights(command: Command, here: Surroundings) -> Iterator[Right]:
        name = command.ext.get(field, "")
        yield topic_right(name, found) if name else cluster_right(here.cluster, found)

    return Need(f"Topic ({field}), or Cluster without it: {_or(actions)}", rights)


def message_topic(field: str, *actions: Action, fallback: str = "", by_id: bool = False) -> Need:
    """Return the need for the topic of a stored message, which `field` names by log position, or `by_id`.

    The topic in the header does not count, because a client can write anything there. `fallback` is the field with
    the topic of a message that does not exist.
    """

    of_topic = frozenset(actions)
    of_group = _SUB if Action.SUB in actions else of_topic

    def rights(command: Command, here: Surroundings) -> Iterator[Right]:
        place = _place(command.ext.get(field, ""), by_id=by_id)
        found = None if place is None else here.topic_at(place)
        if found is None and fallback:
            found = command.ext.get(fallback)
        if found is not None:
            yield topic_right(found, of_topic, of_group)

    return Need(f"Topic of the message ({field}): {_or(actions)}", rights)


def _place(text: str, *, by_id: bool) -> int | None:
    """Return the log position in `text`, read as the handler reads it; None if the handler rejects it."""
    try:
        return parse_offset_message_id(text)[1] if by_id else msgspec.convert(text, int, strict=False)
    except (ValueError, msgspec.ValidationError):
        return None


def in_body(text: str, rights: Callable[[bytes], Iterable[Right]]) -> Need:
    """Return the need for the resources that a body names. An empty body names none."""

    def found(command: Command, here: Surroundings) -> Iterable[Right]:
        raw = bytes(command.body)
        return rights(raw) if raw else ()

    return Need(text, found)


def _subscribed(group_name: str, topics: Iterable[str]) -> Iterator[Right]:
    yield Right(Resource(ResourceKind.GROUP, group_name), _SUB)
    for one in topics:
        if one != names.retry_topic(group_name):
            yield topic_right(one, _SUB)


def _heartbeat(raw: bytes) -> Iterator[Right]:
    for consumer in bodies.read(raw, bodies.Heartbeat).consumer_data_set:
        yield from _subscribed(consumer.group_name, (one.topic for one in consumer.subscription_data_set))


def _locks(raw: bytes) -> Iterator[Right]:
    found = bodies.read(raw, bodies.LockBatch)
    yield from _subscribed(found.consumer_group, dict.fromkeys(queue.topic for queue in found.mq_set))


def _client_check(raw: bytes) -> Iterator[Right]:
    found = bodies.read(raw, bodies.ClientCheck)
    subscription = found.subscription_data
    yield from _subscribed(found.group or "", () if subscription is None else (subscription.topic,))


class _Assignment(bodies.Body):
    """QUERY_ASSIGNMENT, SET_MESSAGE_REQUEST_MODE."""

    topic: str = ""
    consumer_group: str = ""


def _assignment(raw: bytes) -> Iterator[Right]:
    found = bodies.read(raw, _Assignment)
    yield from _subscribed(found.consumer_group, (found.topic,))


class _Acked(bodies.Body):
    """One queue of BATCH_ACK_MESSAGE."""

    group: str = msgspec.field(default="", name="c")
    topic: str = msgspec.field(default="", name="t")


class _BatchAck(bodies.Body):
    """BATCH_ACK_MESSAGE."""

    acks: list[_Acked] = []


def _acks(raw: bytes) -> Iterator[Right]:
    for group_name, topic_name in dict.fromkeys((one.group, one.topic) for one in bodies.read(raw, _BatchAck).acks):
        yield from _subscribed(group_name, (topic_name,))


def _created_topics(raw: bytes) -> Iterator[Right]:
    for config in bodies.read(raw, bodies.TopicConfigList).topic_config_list:
        yield topic_right(config.topic_name, _CREATE)


def _created_group(raw: bytes) -> Iterator[Right]:
    yield Right(Resource(ResourceKind.GROUP, bodies.read(raw, bodies.GroupConfig).group_name), _CREATE_OR_UPDATE)


def _created_groups(raw: bytes) -> Iterator[Right]:
    for config in bodies.read(raw, bodies.GroupConfigList).group_config_list:
        yield Right(Resource(ResourceKind.GROUP, config.group_name), _CREATE_OR_UPDATE)


def _batch_topics(raw: bytes) -> Iterator[Right]:
    for name in dict.fromkeys(part.topic for part in bodies.read(raw, bodies.BatchParts).parts):
        yield topic_right(name, PUB_ACTIONS)


def _layout_topics(command: Command, here: Surroundings) -> Iterator[Right]:
    raw = bytes(command.body)
    topics = bodies.read(raw, bodies.BatchQueues).topics if raw else {}
    for name in topics:
        yield topic_right(name, PUB_ACTIONS)
    if not topics:
        yield cluster_right(here.cluster, _GET)


_GET: Final = frozenset({Action.GET})
_CREATE: Final = frozenset({Action.CREATE})
_CREATE_OR_UPDATE: Final = frozenset({Action.CREATE, Action.UPDATE})

HEARTBEAT: Final = in_body("Group and topics of each subscription: Sub", _heartbeat)
LOCKS: Final = in_body("Group and topics of the queues: Sub", _locks)
CLIENT_CHECK: Final = in_body("Group and topic: Sub", _client_check)
ASSIGNMENT: Final = in_body("Group and topic: Sub", _assignment)
ACKS: Final = in_body("Group and topic of each message: Sub", _acks)
BATCH_TOPICS: Final = in_body("Topic of each part: Pub", _batch_topics)
LAYOUT_TOPICS: Final = Need("Topic of the layout: Pub; without topics Cluster: Get", _layout_topics)
CREATED_TOPICS: Final = in_body("Topic of each config: Create", _created_topics)
CREATED_GROUP: Final = in_body("Group of the config: Create or Update", _created_group)
CREATED_GROUPS: Final = in_body("Group of each config: Create or Update", _created_groups)
