"""A reader that follows the queues of a broker across its deaths, by queue offset and by log position.

It compares each record with the senders' notes. The record must be one of theirs, unchanged, in the requested queue,
at the next queue offset. It must come after all earlier records there, and must not have been read before.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

import numpy as np

from tests.crash.notes import QUEUES, TOPICS, Fate, Kind, Notes, body
from tests.crash.records import Column
from tests.crash.requests import ANSWER_S, pull_command
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record, decode_record
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import Refused
from wheelmq.net.rpc_client import RpcClient

VIEWS: Final = 64
"""Parallel requests for single records."""
EXAMPLES: Final = 5
NOWHERE: Final = -1


class Follower:
    """Continues to read from its last place.

    `wrong` counts violations, and `stories` describe the first of each kind.
    """

    def __init__(self, caller: RpcClient, notes: Notes, body_bytes: int) -> None:
        self._caller = caller
        self._notes = notes
        self._body_bytes = body_bytes
        self._queues: dict[tuple[int, int], list[int]] = {
            (topic, queue): [] for topic in range(len(TOPICS)) for queue in range(QUEUES)
        }
        """Log positions of the read records of each queue, by queue offset."""
        self._positions: Column = np.full(1 << 16, NOWHERE, np.int64)
        """Log position of each read message, by its number."""
        self._to_view: list[int] = []
        self.viewed = 0
        self.wrong: Counter[str] = Counter()
        self.stories: list[str] = []

    @property
    def read(self) -> int:
        return sum(map(len, self._queues.values()))

    async def follow(self) -> None:
        """Read every queue to its current end, then each new record by its log position.

        Raises CallError, Refused.
        """
        await asyncio.gather(*(self._follow_queue(topic, queue) for topic, queue in self._queues))
        while self._to_view:
            some = self._to_view[:VIEWS]
            await asyncio.gather(*map(self._view, some))
            self.viewed += len(some)  # a whole group at once: if the broker dies, the group is viewed again
            del self._to_view[: len(some)]

    async def read_again(self) -> None:
        """Read every queue from its start. Each record must be at its old place. Raises CallError, Refused."""
        await asyncio.gather(*(self._read_again(topic, queue) for topic, queue in self._queues))

    def find_lost(self, first: int, end: int) -> int:
        """Return the number of acknowledged plain messages from `first` to `end` - 1 that were not read."""
        rows = self._notes.rows[first:end]
        self._make_room(end)
        missing = (rows["fate"] == Fate.STORED) & (rows["kind"] == Kind.PLAIN)
        missing &= self._positions[first:end] == NOWHERE
        for number in np.flatnonzero(missing).tolist():
            self._object("lost", f"message {first + number} was acknowledged and is in no queue")
        return int(np.count_nonzero(missing))

    async def close(self) -> None:
        await self._caller.close()

    # By queue offset -------------------------------------------------------------------------------------------------

    async def _pull(self, topic: int, queue: int, queue_offset: int) -> tuple[list[Record], int]:
        """Return records of a queue from `queue_offset` on (none at its end), and the end of the queue."""
        command = pull_command("crash", TOPICS[topic], queue, queue_offset)
        answer = await self._caller.call(command, ANSWER_S)
        if answer.code == ResponseCode.PULL_NOT_FOUND or (
            answer.code == ResponseCode.TOPIC_NOT_EXIST and queue_offset == 0
        ):
            return [], queue_offset
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer)
        records, at = [], 0
        while at < len(answer.body):
            records.append(decode_record(answer.body, at))
            at += records[-1].size
        if int(answer.ext["nextBeginOffset"]) != queue_offset + len(records):
            self._object("holes", f"{TOPICS[topic]}/{queue}: a pull at {queue_offset} goes on at another place")
        return records, int(answer.ext["maxOffset"])

    async def _follow_queue(self, topic: int, queue: int) -> None:
        known = self._queues[topic, queue]
        upto = None  # the first end of the queue, which may grow faster than it is read
        while upto is None or len(known) < upto:
            records, end = await self._pull(topic, queue, len(known))
            upto = end if upto is None else upto
            for record in records:
                self._meet(topic, queue, record)
            if not records and len(known) < upto:
                self._object("lost", f"{TOPICS[topic]}/{queue} ends at {len(known)}, and did at {upto}")
                return

    def _meet(self, topic: int, queue: int, record: Record) -> None:
        known = self._queues[topic, queue]
        where = f"{TOPICS[topic]}/{queue}#{len(known)} at {record.position}"
        if record.queue_offset != len(known):
            self._object("holes", f"{where} says that it is #{record.queue_offset}")
        if known and record.position <= known[-1]:
            self._object("out of order", f"{where} stands before the record before it")
        known.append(record.position)
        self._to_view.append(record.position)
        number = self._number(record)
        if not 0 <= number < self._notes.count:
            self._object("invented", f"{where} has the key {record.message.properties.get(props.UNIQ_KEY)!r}")
            return
        row = self._notes[number]
        self._make_room(number + 1)
        if self._positions[number] != NOWHERE:
            self._object("twice", f"{where} is message {number}, which also is at {self._positions[number]}")
        self._positions[number] = record.position
        if record.message.body != body(number, self._body_bytes) or not record.body_is_intact:
            self._object("changed", f"{where} is message {number} with another body")
        if (row["topic"], row["queue"]) != (topic, queue):
            self._object("elsewhere", f"{where} is message {number}, which was sent to another queue")
        if row["fate"] == Fate.STORED and row["kind"] == Kind.PLAIN and row["queue_offset"] != record.queue_offset:
            self._object("not where the answer said", f"{where} is message {number}, said to be #{row['queue_offset']}")
        if row["fate"] == Fate.REFUSED:
            self._object("refused and there", f"{where} is message {number}")
        early_ms = max(row["due_ms"], row["asked_ms"] + row["delay_ms"]) - record.store_ms
        if early_ms > 0:
            self._object("early", f"{where} is message {number}, due {early_ms} ms later")

    async def _read_again(self, topic: int, queue: int) -> None:
        known = self._queues[topic, queue]
        at = 0
        while at < len(known):
            records, _ = await self._pull(topic, queue, at)
            if not records:
                self._object("lost", f"{TOPICS[topic]}/{queue} ends at {at}, and did at {len(known)}")
                return
            positions = [record.position for record in records]
            if positions[: len(known) - at] != known[at : at + len(records)]:
                self._object("moved", f"{TOPICS[topic]}/{queue}#{at} and behind are not what they were")
            for record in records:
                number = self._number(record)
                intact = 0 <= number < self._notes.count and record.message.body == body(number, self._body_bytes)
                if not intact:
                    self._object("changed", f"{TOPICS[topic]}/{queue}#{record.queue_offset} is not what it was")
            at += len(records)

    # By log position -------------------------------------------------------------------------------------------------

    async def _view(self, position: int) -> None:
        answer = await self._caller.call(
            Command(code=RequestCode.VIEW_MESSAGE_BY_ID, ext=headers.texts(offset=position)), ANSWER_S
        )
        if answer.code != ResponseCode.SUCCESS:
            self._object("not at its log position", f"{position}: {answer.remark}")
            return
        record = decode_record(answer.body)
        number = self._number(record)
        known = 0 <= number < self._notes.count and self._positions[number] == position
        if record.position != position or not known or record.message.body != body(number, self._body_bytes):
            self._object("another at its log position", f"{position} holds message {number}")

    # Words -----------------------------------------------------------------------------------------------------------

    def _number(self, record: Record) -> int:
        """Return the number of a message, from its unique key; -1 if the key is not one of the senders'."""
        key = record.message.properties.get(props.UNIQ_KEY, "")
        prefix = self._notes.key_prefix
        try:
            return int(key.removeprefix(prefix), 16) if key.startswith(prefix) else -1
        except ValueError:
            return -1

    def _make_room(self, count: int) -> None:
        while count > len(self._positions):
            self._positions = np.concatenate((self._positions, np.full_like(self._positions, NOWHERE)))

    def _object(self, kind: str, story: str) -> None:
        self.wrong[kind] += 1
        if self.wrong[kind] <= EXAMPLES:
            self.stories.append(f"{kind}: {story}")
