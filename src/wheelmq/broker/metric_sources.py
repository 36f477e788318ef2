"""The parts whose figures the broker reports: to monitoring, to the dashboard and to administrators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from wheelmq.broker.admission.overload import OverloadGuard
from wheelmq.broker.admission.sends import Admission
from wheelmq.broker.engine import Engine
from wheelmq.broker.kernel_use import KernelUse
from wheelmq.broker.replication.replicas import Replicas
from wheelmq.broker.replication.role import Role
from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.state.clients import Clients
from wheelmq.broker.state.consumer_offsets import ConsumerOffsets
from wheelmq.broker.state.topics import Topics
from wheelmq.broker.statistics import BrokerStats
from wheelmq.broker.steps import Steps
from wheelmq.broker.timer_progress import TimerRates
from wheelmq.broker.transactions.transactions import Transactions
from wheelmq.broker.turns.coordinator import TurnCoordinator
from wheelmq.delay.release import Releaser
from wheelmq.observe.ticks import Ticks
from wheelmq.system.clock import Clock


@dataclass(frozen=True, slots=True)
class MetricSources:
    settings: BrokerSettings
    clock: Clock
    boot_ms: int
    """Milliseconds since 1970."""
    engine: Engine
    releaser: Releaser
    pipeline: TurnCoordinator
    transactions: Transactions
    topics: Topics
    consumer_offsets: ConsumerOffsets
    clients: Clients
    stats: BrokerStats
    timer_rates: TimerRates
    admission: Admission
    overload: OverloadGuard
    ticks: Ticks
    steps: Steps
    role: Role
    replicas: Replicas
    request_counts: Counter[str]
    """Requests by outcome: `served`, `failed`, `unsupported` (served by the default processor), and those that
    the overload guard rejected: `rejected`, `overloaded`, `timed_out`."""
    kernel_use: KernelUse
    shell_figures: Callable[[], dict[str, int]]
    """Returns the counters of the sockets, by name."""
