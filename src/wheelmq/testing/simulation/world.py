"""The state that the parts of a simulation share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.simulation.names import Names
from wheelmq.testing.simulation.oracle import Oracle, Sent
from wheelmq.testing.simulation.trace import Trace


@dataclass
class World:
    """One broker and its environment. Every random choice comes from `randomness`."""

    harness: BrokerHarness
    names: Names
    oracle: Oracle
    randomness: Random
    trace: Trace
    block_share: float
    """Share of the sends that use delayInSeconds."""
    counts: Counter[str] = field(default_factory=Counter)
    """Number of events by kind."""

    def chance(self, share: float) -> bool:
        return self.randomness.random() < share

    def observe(self) -> None:
        self.oracle.observe(self.harness.broker, self.harness.now_ms)

    def new_message(self, topic: str, queue_id: int, due_ms: int | None, key: str | None = None) -> Sent:
        """Return a new message with a unique name, which the caller sends."""
        number = len(self.oracle.sent)
        name = b"m%d" % number
        sent = Sent(name, key or f"K{number}", topic, queue_id, due_ms, sent_ms=self.harness.now_ms)
        self.oracle.sent[name] = sent
        self.counts["sent"] += 1
        return sent
