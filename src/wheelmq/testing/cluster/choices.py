"""Random settings of one run: the brokers, their number and mode, and the network."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from wheelmq.testing.cluster.network import Weather
from wheelmq.testing.simulation.choices import pick_blocks, pick_settings


@dataclass
class ClusterChoices:
    """The properties of a cluster that do not change in a run."""

    members: int
    in_sync: int
    """Brokers that must have a message before a SYNC_MASTER answers."""
    is_sync: bool
    flushes: bool
    """Whether the brokers run with SYNC_FLUSH."""
    is_held: bool
    """Whether the jobs of workers wait."""
    block_share: float
    weather: Weather
    skew_ms_max: int
    """Greatest difference between the clock of a machine and the true time."""
    settings: dict[str, Any]


def pick_cluster(r: Random, seed: int) -> ClusterChoices:
    members = r.choice((2, 2, 3))
    is_sync = r.random() < 0.65
    settings = pick_settings(r)
    block_share = pick_blocks(seed, settings)
    in_sync = r.choice((2, 3)) if members == 3 and not block_share else members
    settings |= {
        "in_sync_replicas": in_sync,
        "slave_timeout_ms": r.choice((300, 1000, 3000)),
        "ha_heartbeat_ms": r.choice((500, 2000)),
        "ha_silence_ms_max": r.choice((3000, 8000)),
        "ha_batch_bytes": r.choice((100, 4096, 256 << 10)),
        "transaction_time_out": r.choice((500, 2000)),
        "transaction_check_interval": r.choice((500, 2000)),
        "transaction_check_max": 10_000,
        "transaction_op_batch_interval": r.choice((0, 100, 1000)),
    }
    weather = Weather(
        delay_ms_max=r.choice((0, 2, 2, 20, 150)),
        splits=r.choice((0.0, 0.3)),
        buffer_bytes=r.choice((4096, 1 << 30)),
    )
    flushes = settings["flush_mode"] == "SYNC_FLUSH"
    is_held, skew_ms_max = r.random() < 0.4, r.choice((0, 0, 3000))
    return ClusterChoices(members, in_sync, is_sync, flushes, is_held, block_share, weather, skew_ms_max, settings)
