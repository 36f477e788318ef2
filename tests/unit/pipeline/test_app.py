"""The launcher of the pipeline."""

from __future__ import annotations

import pytest

from wheelmq.pipeline.app import default_master


@pytest.mark.parametrize(
    ("brokers", "groups", "master"),
    [
        (0, 8, "local[16,4]"),
        (0, 32, "local[34,4]"),
        (5, 32, "local[34,4]"),
        (10, 32, "local[40,4]"),
        (0, 1, "local[16,4]"),
    ],
)
def test_the_default_master_has_room_for_the_groups_of_registered_brokers(
    brokers: int, groups: int, master: str
) -> None:
    """The name server may list more brokers than groups at any time, and the session keeps its slots."""
    assert default_master(brokers, may_grow=True, groups=groups) == master
