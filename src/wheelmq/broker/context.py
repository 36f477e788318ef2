"""The parts that most handlers use. A handler that needs another part names it (`handler_table`)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from wheelmq.broker.admission.failed_puts import FailedPuts
from wheelmq.broker.admission.sends import Admission
from wheelmq.broker.calls import Calls
from wheelmq.broker.holds import Holds
from wheelmq.broker.hooks import Hooks
from wheelmq.broker.new_queues import NewQueues
from wheelmq.broker.puts import Puts
from wheelmq.broker.replication.role import Role
from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.slices import Slices
from wheelmq.broker.state.clients import Clients
from wheelmq.broker.state.consumer_filters import ConsumerFilters
from wheelmq.broker.state.consumer_offsets import ConsumerOffsets
from wheelmq.broker.state.groups import Groups
from wheelmq.broker.state.locks import QueueLocks
from wheelmq.broker.state.topics import Topics
from wheelmq.broker.statistics import BrokerStats
from wheelmq.store.store import Store
from wheelmq.system.clock import Clock
from wheelmq.system.workers import Workers


@dataclass(frozen=True, slots=True)
class Context:
    settings: BrokerSettings
    """The settings in force. Some change at run time."""
    role: Role
    """Whether the broker is a master now."""
    clock: Clock
    randomness: Random
    """The choice of a queue for a message without one."""
    workers: Workers
    store: Store
    puts: Puts
    admission: Admission
    failed_puts: FailedPuts
    new_queues: NewQueues
    """The queues that wait for their turn to be opened."""
    holds: Holds
    """The requests whose answers come later."""
    slices: Slices
    """The answers that need more than one tick."""
    calls: Calls
    """The requests of the broker to its clients."""
    hooks: Hooks
    """The functions of the operator around requests, sends and pulls."""
    stats: BrokerStats
    topics: Topics
    """RocketMQ: topics.json."""
    groups: Groups
    """RocketMQ: subscriptionGroup.json."""
    consumer_offsets: ConsumerOffsets
    """RocketMQ: consumerOffset.json."""
    consumer_filters: ConsumerFilters
    """RocketMQ: consumerFilter.json."""
    clients: Clients
    locks: QueueLocks
    """The queues that clients have locked to consume them in order."""
