"""The numbers of epochs."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from wheelmq.broker.replication.epochs import FIRST_WITHOUT_CONTROLLER, Epochs
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.units import LogPosition
from wheelmq.testing.disk import SimulatedDisk


@pytest.fixture
def epochs(tmp_path: Path) -> Epochs:
    made = Epochs(SimulatedDisk(), StorePaths(tmp_path))
    made.begin(made.next_for_start(Random(1)), LogPosition(0))
    return made


@pytest.mark.parametrize("starts", [1, 1000])
def test_a_promotion_is_later_than_each_start_of_the_former_master(epochs: Epochs, starts: int) -> None:
    promoted = [epochs.next_for_promotion(Random(seed)) for seed in range(300)]
    for i in range(starts):
        epochs.begin(epochs.next_for_start(Random(i)), LogPosition(100 * i))
    assert epochs.last is not None and epochs.last.number < min(promoted)


def test_promotions_at_the_same_time_get_different_numbers(epochs: Epochs) -> None:
    assert len({epochs.next_for_promotion(Random(seed)) for seed in range(40)}) > 30


def test_a_thousand_promotions_fit(epochs: Epochs) -> None:
    for i in range(1, 2001):
        epochs.begin(epochs.next_for_promotion(Random(i)), LogPosition(i))


def test_a_start_without_the_controller_takes_none_of_its_numbers(tmp_path: Path) -> None:
    """Else a later election has the same number, and two logs that differ count as equal."""
    epochs = Epochs(SimulatedDisk(), StorePaths(tmp_path))
    epochs.begin(7, LogPosition(0))
    assert epochs.next_for_start(Random(1)) >= FIRST_WITHOUT_CONTROLLER
