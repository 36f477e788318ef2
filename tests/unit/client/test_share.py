"""The offset of a queue that a consumer may commit."""

from __future__ import annotations

import asyncio

from wheelmq.client.share import HeldQueue, PolledQueue
from wheelmq.formats.wire.bodies import QueueName

QUEUE = QueueName(topic="T", broker_name="b", queue_id=0)


def test_the_committable_offset_ends_at_the_first_open_message() -> None:
    held = HeldQueue(QUEUE, 10, 100)
    assert held.committable == 10
    held.take([(10, 1), (11, 1), (13, 1)], 14)
    assert held.committable == 10
    held.done(11)
    assert held.committable == 10
    held.done(10)
    assert held.committable == 13
    held.done(13)
    assert held.committable == 14


def test_filtered_messages_are_committable_at_once() -> None:
    held = HeldQueue(QUEUE, 0, 100)
    held.take([], 32)
    assert held.committable == 32


def test_a_full_queue_waits_until_a_message_is_done() -> None:
    async def scenario() -> None:
        held = HeldQueue(QUEUE, 0, 2)
        held.take([(0, 1), (1, 1)], 2)
        waiting = asyncio.create_task(held.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        held.done(0)
        await waiting

    asyncio.run(scenario())


def test_the_bytes_in_hand_also_fill_a_queue() -> None:
    async def scenario() -> None:
        held = HeldQueue(QUEUE, 0, 100, 10)
        held.take([(0, 8), (1, 4)], 2)
        assert (held.in_hand, held.in_hand_bytes) == ((2, 0, 1), 12)
        waiting = asyncio.create_task(held.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        held.done(0)
        await waiting
        held.done(0)
        assert held.in_hand_bytes == 4

    asyncio.run(scenario())


def test_polled_messages_are_committable_after_confirmation() -> None:
    held = PolledQueue(QUEUE, 5, 100)
    held.take([(5, 1), (6, 1)], 7)
    held.done(5)
    assert (held.position, held.committable) == (6, 5)
    held.confirm()
    held.done(6)
    assert (held.position, held.committable) == (7, 6)


def test_an_offset_is_committed_until_the_store_has_surely_kept_it() -> None:
    held = HeldQueue(QUEUE, 5, 100)
    assert not held.needs_commit
    held.take([], 7)
    assert held.needs_commit
    held.note_commit(7, is_kept=False)
    assert held.needs_commit
    held.note_commit(7, is_kept=True)
    assert not held.needs_commit
