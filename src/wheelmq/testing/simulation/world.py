"""What the parts of a simulation share."""

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
    """One broker and what is around it. All chance comes from `randomness`."""

    harness: BrokerHarness
    names: Names
    oracle: Oracle
    randomness: Random
    trace: Trace
    block_share: float
    """Of the sends: how many ask for their delay by delayInSeconds."""
    counts: Counter[str] = field(default_factory=Counter)
    """How often each thing happened."""

    def chance(self, share: float) -> bool:
        """True in that share of the cases."""
        return self.randomness.random() < share

    def observe(self) -> None:
        """Let the oracle take what the broker has appended."""
        self.oracle.observe(self.harness.broker, self.harness.now_ms)

    def new_message(self, topic: str, queue_id: int, due_ms: int | None, key: str | None = None) -> Sent:
        """A message that is about to be sent, under its own name."""
        number = len(self.oracle.sent)
        name = b"m%d" % number
        sent = Sent(name, key or f"K{number}", topic, queue_id, due_ms, sent_ms=self.harness.now_ms)
        self.oracle.sent[name] = sent
        self.counts["sent"] += 1
        return sent
