"""The verdict over a topic and its copy: each message of the topic exists exactly once in the copy, unchanged."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.crash.copier import PLACE
from tests.crash.requests import ANSWER_S, pull_command
from wheelmq.client import Admin
from wheelmq.client.message import read_records
from wheelmq.formats.disk.message import Record
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.net.errors import Refused
from wheelmq.net.rpc_client import RpcClient

EXAMPLES: Final = 5
NO_PLACE: Final = "no property " + PLACE
DAMAGED: Final = -1
"""The checksum of a body that differs from the checksum in its record."""


class Unreadable(Exception):
    """A queue that has holes."""


class Stored(NamedTuple):
    """A message of the topic or of its copy."""

    place: str
    """BROKER/QUEUE/OFFSET in the topic, for a copy too."""
    checksum: int
    number: int
    """The number of the send; -1 if the body has none."""


@dataclass
class CopyVerdict:
    messages: int
    copies: int
    unacknowledged: int
    """Messages of the topic beyond those that were acknowledged: repeated sends."""
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    """The place of each copy beyond the first one of a message."""
    invented: list[str] = field(default_factory=list)
    """Copies of a message that the topic does not have."""
    changed: list[str] = field(default_factory=list)
    unsent: list[int] = field(default_factory=list)
    """Numbers of acknowledged sends that the topic does not have."""

    @property
    def violations(self) -> list[str]:
        found = []
        for name in ("lost", "duplicated", "invented", "changed", "unsent"):
            wrong = getattr(self, name)
            if wrong:
                found.append(f"{name} {len(wrong)}: {', '.join(map(str, wrong[:EXAMPLES]))}")
        return found


def judge_copies(messages: Iterable[Stored], copies: Sequence[Stored], acknowledged: Set[int]) -> CopyVerdict:
    """Compare the messages of a topic with their copies, and with the numbers of acknowledged sends."""
    checksums: dict[str, int] = {}
    numbers: set[int] = set()
    for message in messages:
        assert message.place not in checksums, "a place has one message"
        checksums[message.place] = message.checksum
        numbers.add(message.number)
    counts = Counter(copy.place for copy in copies)
    changed = [copy.place for copy in copies if checksums.get(copy.place, copy.checksum) != copy.checksum]
    return CopyVerdict(
        messages=len(checksums),
        copies=len(copies),
        unacknowledged=len(checksums) - len(acknowledged),
        lost=[place for place in checksums if place not in counts],
        duplicated=[place for place, count in counts.items() if place in checksums for _ in range(count - 1)],
        invented=[copy.place for copy in copies if copy.place not in checksums],
        changed=changed + [place for place, checksum in checksums.items() if checksum == DAMAGED],
        unsent=sorted(acknowledged - numbers),
    )


# Reading --------------------------------------------------------------------------------------------------------------


async def read_topic(admin: Admin, addresses: Mapping[str, str], topic: str) -> list[tuple[str, Record]]:
    """Return each record of a topic with its place, by queue. Raises CallError, Refused, Unreadable."""
    spans = await admin.spans(topic)
    found: list[tuple[str, Record]] = []
    for broker, address in addresses.items():
        caller = RpcClient(address)
        try:
            for queue in sorted(one.queue_id for one in spans if one.broker_name == broker):
                records = await _read_queue(caller, topic, queue)
                found += [(f"{broker}/{queue}/{record.queue_offset}", record) for record in records]
        finally:
            await caller.close()
    if len(found) != sum(span.end for span in spans.values()):
        raise Unreadable(f"{len(found)} messages of {topic} were read, and its queues have {spans}")
    return found


def of_source(read: Iterable[tuple[str, Record]]) -> list[Stored]:
    return [Stored(place, _checksum(record), number_of(record.message.body)) for place, record in read]


def of_sink(read: Iterable[tuple[str, Record]]) -> list[Stored]:
    return [
        Stored(record.message.properties.get(PLACE, NO_PLACE), _checksum(record), number_of(record.message.body))
        for _, record in read
    ]


def number_of(body: bytes) -> int:
    """Return the number of the send that a body begins with; -1 without one."""
    head = body.partition(b" ")[0]
    return int(head) if head.isdigit() else -1


def _checksum(record: Record) -> int:
    return zlib.crc32(record.message.body) if record.body_is_intact else DAMAGED


async def _read_queue(caller: RpcClient, topic: str, queue: int) -> list[Record]:
    """Return all records of a queue, by queue offset. Raises CallError, Refused, Unreadable."""
    found: list[Record] = []
    while True:
        answer = await caller.call(pull_command("copies", topic, queue, len(found)), ANSWER_S)
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return found
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer)
        records = read_records(answer.body)
        if [one.queue_offset for one in records] != list(range(len(found), len(found) + len(records))):
            raise Unreadable(f"queue {queue} of {topic} has a hole after {len(found)} messages")
        found += records
