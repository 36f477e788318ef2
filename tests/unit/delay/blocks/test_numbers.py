"""Numbers of blocks: each is used again only when neither a block nor a record of the log has it."""

from __future__ import annotations

import pytest

from wheelmq.delay.blocks.numbers import BlockNumbers, NoNumberLeft
from wheelmq.formats.units import LogPosition

START = LogPosition(100)


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> BlockNumbers:
    monkeypatch.setattr("wheelmq.delay.blocks.numbers.NUMBER_MAX", 4)
    return BlockNumbers()


def test_numbers_begin_at_1_and_start_again_after_the_last(numbers: BlockNumbers) -> None:
    taken = []
    for _ in range(6):
        taken.append(numbers.next_free((), START))
        numbers.note_used(taken[-1])
    assert taken == [1, 2, 3, 4, 1, 2]


def test_a_start_continues_after_the_highest_number_that_it_found(numbers: BlockNumbers) -> None:
    numbers.note_found(3)
    numbers.note_found(2)
    assert (numbers.last, numbers.next_free((), START)) == (3, 4)


def test_a_number_in_use_is_left_out(numbers: BlockNumbers) -> None:
    assert numbers.next_free({1, 2}, START) == 3


@pytest.mark.parametrize(("end", "free"), [(100, 1), (101, 2)])
def test_a_number_is_free_once_the_log_no_longer_names_it(numbers: BlockNumbers, end: int, free: int) -> None:
    numbers.note_gone(1, LogPosition(end))
    assert numbers.next_free((), START) == free
    assert numbers.gone(START) == ({} if free == 1 else {1: end})


def test_without_a_free_number_a_block_is_rejected(numbers: BlockNumbers) -> None:
    numbers.note_gone(4, LogPosition(101))
    with pytest.raises(NoNumberLeft, match="each of the 4 numbers is in use, or in the log"):
        numbers.next_free({1, 2, 3}, START)
