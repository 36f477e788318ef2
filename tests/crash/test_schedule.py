"""A seed determines the kills, which include every failpoint of the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import wheelmq
from tests.crash.schedule import (
    BROKER_POINTS,
    IN_TRANSACTIONS,
    NEEDS_TURNS,
    OF_APACHE,
    OF_BATCHES,
    OF_COPIES,
    OF_REPLICAS,
    OVER_THE_WIRE,
    PIPELINE_POINTS,
    WITH_APACHES_STORE,
    WITHOUT_TURNS,
    deaths,
    make_schedule,
)

KILLS = 80


def test_the_lists_have_every_failpoint_of_the_package() -> None:
    """A new failpoint must be added here."""
    sources = Path(wheelmq.__file__).parent.rglob("*.py")
    found = {name for source in sources for name in re.findall(r'\breach\("([\w.]+)"\)', source.read_text())}
    others = {*WITH_APACHES_STORE, *OVER_THE_WIRE, *IN_TRANSACTIONS, *OF_COPIES, *OF_REPLICAS, *WITHOUT_TURNS}
    others |= {*OF_APACHE, *OF_BATCHES}
    assert found == {*BROKER_POINTS, *PIPELINE_POINTS, *others}


@pytest.mark.parametrize("seed", range(20))
def test_a_whole_schedule_has_every_failpoint_and_every_role(seed: int) -> None:
    chains = make_schedule(KILLS, seed)
    assert KILLS <= deaths(chains) <= KILLS + 2
    kills = [kill for chain in chains for kill in chain]
    points = [kill.what for kill in kills if kill.is_failpoint]
    assert sorted(points) == sorted([*BROKER_POINTS, *PIPELINE_POINTS])
    assert {"broker", "broker again", "driver", "jvm", "source", "task"} <= {kill.what for kill in kills}
    for chain in chains:
        assert not chain[0].is_failpoint and all(kill.is_failpoint for kill in chain[1:])
        kinds = {kill.what in PIPELINE_POINTS for kill in chain[1:]}
        assert len(kinds) <= 1, "a chain is the broker's or the pipeline's"


def test_a_seed_determines_the_schedule() -> None:
    assert make_schedule(KILLS, 7) == make_schedule(KILLS, 7) != make_schedule(KILLS, 8)


def test_a_schedule_has_only_the_named_kills() -> None:
    chains = make_schedule(10, 1, ("broker", "jvm"))
    assert {kill.what for chain in chains for kill in chain} == {"broker", "jvm"}
    chains = make_schedule(5, 1, ("broker", "commit.armed"))
    assert {kill.what for chain in chains for kill in chain} == {"broker", "commit.armed"}


def test_an_unknown_name_is_rejected() -> None:
    with pytest.raises(ValueError, match="brokr: known are"):
        make_schedule(10, 1, ("brokr",))


def test_without_spark_only_the_broker_is_killed() -> None:
    kills = {kill.what for chain in make_schedule(KILLS, 1, spark=False) for kill in chain}
    assert not kills & {*PIPELINE_POINTS, *NEEDS_TURNS, "driver", "jvm", "source", "task", "daemon"}
