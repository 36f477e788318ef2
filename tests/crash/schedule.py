"""The kills of a run: processes, order and passages, all determined by the seed.

A failpoint is armed when its process starts. So kills come in chains. The first one ends a process by hand at a
random moment. Each start arms the next failpoint of the chain, and the last start arms none.
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
"""Failpoints of a broker, and the latest passage at which they may fire."""

PIPELINE_POINTS: Final = {
    "driver.collected": 4,
    "driver.committed": 4,
    "driver.opened": 1,
    "source.planned": 4,
    "task.read": 6,
    "task.upload": 6,
    "task.uploaded": 6,
}
"""Failpoints of driver, source and tasks. A task's passages and deaths are counted in each worker separately."""

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
"""Failpoints that a broker never passes without a pipeline."""

WITHOUT_TURNS: Final = ("lane.armed", "lane.scan")
"""Failpoints of a broker that arms messages itself; tests/unit/broker/test_fallback.py ends there."""

WITH_APACHES_STORE: Final = ("recover.offsets",)
"""Failpoints of the first start on a store of Apache RocketMQ. tests/unit/delay/test_apache_levels.py ends there."""

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
"""Failpoints of transactions. tests/property/test_transactions.py ends there."""

OF_BATCHES: Final = (
    "batch.appended",
    "batch.checked",
    "batch.decided",
    "batch.layout_saved",
    "batch.marked",
    "batch.removed",
    "batch.saved",
)
"""Failpoints of batches. tests/unit/broker/test_batches.py ends there."""

OF_COPIES: Final = (
    "create.named",
    "create.written",
    "restore.logs",
    "restore.object",
    "restore.renamed",
    "restore.verified",
    "ship.chunks",
    "ship.expired",
    "ship.merged",
    "ship.opened",
    "ship.points",
    "ship.removed",
    "ship.repacked",
    "ship.stored",
    "target.written",
)
"""Failpoints of `wheelmq ship` and `wheelmq restore`. The random runs of tests/ship end there."""

OF_REPLICAS: Final = (
    "copy.appended",
    "copy.flagged",
    "copy.tail",
    "copy.written",
    "cut.begun",
    "cut.checkpoint",
    "cut.log",
    "follow.taken",
    "follow.written",
    "truncate.begun",
    "truncate.cut",
    "truncate.epochs",
    "truncate.unflagged",
)
"""Failpoints of a replica. tests/property/test_replica_stops.py ends there, and for cuts of blocks
tests/unit/broker/test_block_failover.py."""

OF_APACHE: Final = ("apache_checkpoint.before", "apache_checkpoint.written", "apache_log.prepared")
"""Failpoints of a slave of Apache RocketMQ. tests/golden/test_following.py ends there."""

OVER_THE_WIRE: Final = ("task.portion",)
"""Failpoints of a task that does not see the store's folder. Here every task sees it."""

BY_HAND: Final = ("source", "task", "jvm", "driver", "broker and driver", "broker again", "daemon", "broker")
"""Kills by hand.

`broker again` is two kills: the second one comes within a second of the start after the first one.
"""

PIPELINE_AWAY: Final = "pipeline away"
"""All of the pipeline is killed at once, and started after a time. No random schedule has it."""

WITH_PIPELINE: Final = ("broker and driver", "driver", "jvm", "source", "task", "daemon")

BROKER_HEADS: Final = ("broker", "broker", "broker again", "broker and driver")
PIPELINE_HEADS: Final = ("driver", "jvm")
CHAIN: Final = (3, 6)
"""Least and most failpoints in a chain."""
PAUSE_S: Final = (0.05, 2.5)
IMPATIENT_SHARE: Final = 0.15


@dataclass(frozen=True)
class Kill:
    """One kill: by hand, or by a failpoint at its `passage`."""

    what: str
    pause_s: float
    """Time from a healthy state to this kill."""
    passage: int = 0
    impatient: bool = False
    """Whether the kill waits only until the broker serves and enough is pending. It then does not wait for a turn."""
    away_s: float = 0.0
    """How long the pipeline stays away."""

    @property
    def is_failpoint(self) -> bool:
        return self.passage > 0

    @property
    def deaths(self) -> int:
        return 2 if self.what in ("broker again", "broker and driver") else 1

    @property
    def arms(self) -> tuple[str, int] | None:
        return (self.what, self.passage) if self.is_failpoint else None


Chain = tuple[Kill, ...]


def make_schedule(count: int, seed: int, only: Sequence[str] = (), *, spark: bool = True) -> list[Chain]:
    """Return chains of about `count` kills: every failpoint once, if there is room, and the rest by hand.

    `only` names kills or failpoints; `failpoints` means all of them.
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
    """Return all names that `only` may have."""
    return [*BY_HAND, "failpoints", *sorted(BROKER_POINTS), *sorted(PIPELINE_POINTS)]


def deaths(chains: Sequence[Chain]) -> int:
    return sum(map(_deaths, chains))


def _deaths(chain: Sequence[Kill]) -> int:
    return sum(kill.deaths for kill in chain)


def _by_hand(what: str, chance: random.Random) -> Kill:
    return Kill(what, round(chance.uniform(*PAUSE_S), 3), impatient=chance.random() < IMPATIENT_SHARE)


def _at_point(point: str, latest: dict[str, int], chance: random.Random) -> Kill:
    return Kill(point, 0.0, passage=chance.randint(1, latest[point]))
