"""At any moment, each broker that a controller may elect has each acknowledged message.

A master gets messages and three replicas, whose links break. Requests to the controller are applied late, and their
answers are late, or are lost. The order of all steps is random.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from tests.unit.broker.test_replicas import code_of, send_later
from tests.unit.broker.test_sync_state_set import ELECTED, OWN, lead
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.testing.harness import Ask, BrokerHarness
from wheelmq.testing.replica import FakeReplica

STEPS = 250
REPLICAS = (2, 3, 4)


class Request(NamedTuple):
    members: frozenset[int]
    known_epoch: int


class World:
    """The master, its replicas, and the set of the controller."""

    def __init__(self, harness: BrokerHarness, randomness: Random) -> None:
        self.harness, self.randomness = harness, randomness
        lead(harness)
        elections = harness.broker.parts.elections
        assert elections is not None
        self.membership = elections.membership
        self.members, self.epoch = frozenset({OWN}), 1
        """The set as the controller has it."""
        self.on_the_way: list[Request] = []
        """Requests that the controller has not seen yet, the oldest first."""
        self.waits = False
        """Whether the master waits for an answer."""
        self.links: dict[int, FakeReplica] = {}
        self.ends: dict[int, int] = {}
        """The end of each replica's log, connected or not."""
        self.asked: list[tuple[Ask, int]] = []
        self.acknowledged = 0
        """The end of the last acknowledged message."""
        self.count = 0
        self.sizes: set[int] = set()

    def step(self) -> None:
        steps = (self.send, self.report, self.report, self.connect, self.lose, self.decide, self.control, self.poll)
        weights = (6, 5, 5, 2, 1, 6, 4, 1)
        self.randomness.choices(steps, weights)[0]()
        self.harness.advance(self.randomness.choice((0, 1, 30, 400)))
        self.check()

    def send(self) -> None:
        asked = send_later(self.harness, b"%d" % len(self.asked))
        self.asked.append((asked, self.harness.broker.parts.store.log.end))

    def connect(self) -> None:
        one = self.randomness.choice(REPLICAS)
        self.lose_one(one)
        replica = self.links[one] = FakeReplica(self.harness)
        replica.shake_hands(one)
        replica.report(self.ends.get(one, 0))

    def lose(self) -> None:
        self.lose_one(self.randomness.choice(REPLICAS))

    def lose_one(self, one: int) -> None:
        replica = self.links.pop(one, None)
        if replica is not None and replica.link is not None:
            self.harness.broker.lose_replica(replica.link)
            self.harness.end_round()

    def report(self) -> None:
        """Let a replica get some of the bytes that it lacks."""
        if not self.links:
            return
        one = self.randomness.choice(sorted(self.links))
        replica, end = self.links[one], self.harness.broker.parts.store.log.end
        replica.frames()
        known = self.ends.get(one, 0)
        self.ends[one] = end if self.randomness.random() < 0.7 else self.randomness.randint(known, end)
        replica.report(self.ends[one])

    def decide(self) -> None:
        """Let the master request a change, unless it waits for an answer."""
        wanted = self.membership.wanted()
        if wanted is not None and not self.waits:
            elections = self.harness.broker.parts.elections
            assert elections is not None
            self.membership.request(wanted)
            self.on_the_way.append(Request(wanted, elections.set_epoch))
            self.waits = True
            if self.randomness.random() < 0.2:
                self.waits = False  # the connection breaks before the answer

    def control(self) -> None:
        """Apply the oldest request. Its answer may be lost."""
        if not self.on_the_way:
            return
        request, is_last = self.on_the_way.pop(0), not self.on_the_way
        is_applied = request.known_epoch == self.epoch and request.members != self.members
        if is_applied:
            self.members, self.epoch = request.members, self.epoch + 1
            self.sizes.add(len(self.members))
        if is_last and self.waits:
            self.waits = False
            if is_applied and self.randomness.random() < 0.7:
                self.membership.take(self.members, self.epoch)

    def poll(self) -> None:
        self.membership.take(self.members, self.epoch)

    def check(self) -> None:
        for asked, end in self.asked:
            if code_of(asked) == ResponseCode.SUCCESS:
                self.acknowledged = max(self.acknowledged, end)
        self.count = sum(code_of(asked) == ResponseCode.SUCCESS for asked, _ in self.asked)
        for one in self.members - {OWN}:
            assert self.ends.get(one, 0) >= self.acknowledged, f"replica {one} may be elected, and lacks messages"


@pytest.mark.parametrize("seed", range(12))
def test_an_electable_replica_has_each_acknowledged_message(tmp_path: Path, seed: int) -> None:
    with BrokerHarness(tmp_path, slave_timeout_ms=5000, **ELECTED) as harness:
        world = World(harness, Random(seed))
        for _ in range(STEPS):
            world.step()
        assert world.count > 10 and len(world.sizes) > 1, "messages are acknowledged, and the set changes"
