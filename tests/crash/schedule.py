"""Which processes die, in which order, at which passage: everything that a seed decides.

A failpoint is armed when its process starts. So kills come in chains: the first one ends a process by hand, at a
moment of chance; what is started in its place is armed with the next of the chain, and the last start is armed with
nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

BROKER_POINTS: Final = {
    "block.checkpoint": 3,
    "block.gone": 1,
    "block.logged": 200,
    "block.queued": 200,
    "block.recovered": 1,
    "block.removed": 2,
    "block.synced": 4,
    "blocks.checked": 1,
    "blocks.loaded": 1,
    "blocks.recovered": 1,
    "blocks.wheel": 1,
    "cancel.appended": 30,
    "checkpoint.before": 2,
    "checkpoint.written": 2,
    "commit.armed": 4,
    "commit.before": 4,
    "commit.units": 4,
    "delay_offsets.before": 1,
    "delay_offsets.written": 1,
    "dispatch.before": 400,
    "dispatch.units": 400,
    "file.allocated": 2,
    "flush.log_synced": 6,
    "log.blank": 1,
    "log.grown": 1,
    "mark.before": 5,
    "mark.written": 5,
    "plan.before": 4,
    "plan.made": 4,
    "recover.cut": 1,
    "recover.rebuilt": 1,
    "recover.scanned": 1,
    "recover.staged": 1,
    "release.after": 800,
    "release.before": 800,
    "replace.renamed": 9,
    "replace.written": 9,
    "roll.after": 10,
    "send.appended": 500,
    "snapshot.before": 1,
    "snapshot.written": 1,
    "upload.taken": 4,
}
"""Where a broker may end, and the latest passage at which it is asked to."""

PIPELINE_POINTS: Final = {
    "driver.collected": 4,
    "driver.committed": 4,
    "driver.opened": 1,
    "source.planned": 4,
    "task.read": 6,
    "task.upload": 6,
    "task.uploaded": 6,
}
"""The same for driver, source and tasks. A task's passages are counted in each worker anew, and so are its deaths."""

NEEDS_TURNS: Final = (
    "commit.armed",
    "commit.before",
    "commit.units",
    "mark.before",
    "mark.written",
    "plan.before",
    "plan.made",
    "roll.after",
    "upload.taken",
)
"""What a broker never passes without a pipeline."""

WITHOUT_TURNS: Final = ("lane.armed", "lane.scan")
"""Failpoints of a broker that arms messages itself; tests/unit/broker/test_fallback.py ends there."""

WITH_APACHES_STORE: Final = ("recover.offsets",)
"""What only the first start on a store of Apache RocketMQ passes; tests/unit/delay/test_level_queues.py ends there."""

IN_TRANSACTIONS: Final = (
    "transaction.asked",
    "transaction.committed",
    "transaction.ended",
    "transaction.given_up",
    "transaction.half",
    "transaction.moved_on",
    "transaction.op",
    "transaction.put_back",
)
"""What only transactions pass; tests/property/test_transactions.py ends there."""

OVER_THE_WIRE: Final = ("task.portion",)
"""What a task passes that does not see the store's folder; here each does."""

BY_HAND: Final = ("source", "task", "jvm", "driver", "broker and driver", "broker again", "daemon", "broker")
"""`broker again` is two kills: the second one comes within a second of the start that the first one made."""

PIPELINE_AWAY: Final = "pipeline away"
"""All of the pipeline at once, and no start for a time: no schedule has it by chance."""

WITH_PIPELINE: Final = ("broker and driver", "driver", "jvm", "source", "task", "daemon")

BROKER_HEADS: Final = ("broker", "broker", "broker again", "broker and driver")
PIPELINE_HEADS: Final = ("driver", "jvm")
CHAIN: Final = (3, 6)
"""How many failpoints a chain has."""
PAUSE_S: Final = (0.05, 2.5)
IMPATIENT_SHARE: Final = 0.15


@dataclass(frozen=True)
class Kill:
    """One kill: by hand, or by a failpoint at its `passage`."""

    what: str
    pause_s: float
    """From the moment at which everything is well again to this kill."""
    passage: int = 0
    impatient: bool = False
    """It does not wait until the pipeline turns again, only until the broker serves and enough is pending."""
    away_s: float = 0.0
    """How long the pipeline stays away."""

    @property
    def is_failpoint(self) -> bool:
        return self.passage > 0

    @property
    def deaths(self) -> int:
        """How many kills it counts as."""
        return 2 if self.what in ("broker again", "broker and driver") else 1

    @property
    def arms(self) -> tuple[str, int] | None:
        return (self.what, self.passage) if self.is_failpoint else None


Chain = tuple[Kill, ...]


def make_schedule(count: int, seed: int, only: Sequence[str] = (), *, spark: bool = True) -> list[Chain]:
    """Chains of about `count` kills: every failpoint once, if there is room, and the rest by hand.

    `only` names kills or failpoints; `failpoints` stands for all of them.
    """
    chance = random.Random(seed)
    allowed = [what for what in BY_HAND if spark or what not in WITH_PIPELINE]
    broker_points = [point for point in BROKER_POINTS if spark or point not in NEEDS_TURNS]
    pipeline_points = list(PIPELINE_POINTS) if spark else []
    if only:
        unknown = set(only) - {*BY_HAND, *BROKER_POINTS, *PIPELINE_POINTS, "failpoints"}
        if unknown:
            raise ValueError(f"{', '.join(sorted(unknown))}: known are {', '.join(known())}")
        allowed = [what for what in allowed if what in only]
        if "failpoints" not in only:
            broker_points = [point for point in broker_points if point in only]
            pipeline_points = [point for point in pipeline_points if point in only]
    chains: list[Chain] = []
    left = count
    for points, heads, latest in (
        (pipeline_points, PIPELINE_HEADS, PIPELINE_POINTS),
        (broker_points, BROKER_HEADS, BROKER_POINTS),
    ):
        chosen = tuple(head for head in heads if head in allowed) or heads[:1]
        chance.shuffle(points)
        while points and left > 1:
            length = min(chance.randint(*CHAIN), len(points), left - 1)
            chain = [_by_hand(chance.choice(chosen), chance)]
            chain += [_at_point(points.pop(), latest, chance) for _ in range(length)]
            chains.append(tuple(chain))
            left -= _deaths(chain)
    i = 0
    while left > 0 and allowed:
        chains.append((_by_hand(allowed[i % len(allowed)], chance),))
        left -= _deaths(chains[-1])
        i += 1
    chance.shuffle(chains)
    return chains


def known() -> list[str]:
    """Everything that `only` may name."""
    return [*BY_HAND, "failpoints", *sorted(BROKER_POINTS), *sorted(PIPELINE_POINTS)]


def deaths(chains: Sequence[Chain]) -> int:
    """The kills in a schedule."""
    return sum(map(_deaths, chains))


def _deaths(chain: Sequence[Kill]) -> int:
    return sum(kill.deaths for kill in chain)


def _by_hand(what: str, chance: random.Random) -> Kill:
    return Kill(what, round(chance.uniform(*PAUSE_S), 3), impatient=chance.random() < IMPATIENT_SHARE)


def _at_point(point: str, latest: dict[str, int], chance: random.Random) -> Kill:
    return Kill(point, 0.0, passage=chance.randint(1, latest[point]))
