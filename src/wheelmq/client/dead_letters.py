"""The dead letters of a consumer group: messages that it could not process (RocketMQ: the topic %DLQ% plus the group).

A resend appends a copy to the group's retry topic, so no other group gets the message again. The copy has the message
id of its letter in the property RESENT_DEAD_LETTER. So one append sends the copy and records that the letter is resent:
no death of the process can separate the two. Each resend first reads the copies that are stored.

Two resends of one group must not run together: both could miss the copy of the other. Each one registers as the only
member of a producer group. A broker removes the member when its connection closes, and reads all requests of the
connection before that. So the next resend cannot overtake a copy that is still on its way. A broker that removes a
silent member closes its connection. So no copy follows on a connection whose member is gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from wheelmq.client.message import read_records
from wheelmq.client.outgoing import check_group, encode_properties
from wheelmq.client.reading import read_queue
from wheelmq.client.results import STATUS, SendStatus
from wheelmq.client.session import Session
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import SYS_COMPRESSED, SYS_COMPRESSION_KIND, Record
from wheelmq.formats.disk.message_id import offset_message_id, parse_offset_message_id
from wheelmq.formats.wire import administration, bodies, headers
from wheelmq.formats.wire.bodies import Heartbeat, ProducerData, QueueName
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.net.errors import CallError, Refused
from wheelmq.system.clock import Clock, SystemClock
from wheelmq.system.tls_client import Tls

if TYPE_CHECKING:
    from typing_extensions import Self

RESENT: Final = "RESENT_DEAD_LETTER"
PRODUCERS: Final = "WHEELMQ_RESEND_"
"""The beginning of the name of the producer group of a resend."""
_COMPRESSION: Final = SYS_COMPRESSED | SYS_COMPRESSION_KIND
_DROPPED: Final = frozenset(
    (
        *(props.DELAY, props.DELAY_IN_SECONDS, props.REAL_TOPIC, props.REAL_QID, props.WAIT, props.INNER_NUM),
        *(props.TRAN_MSG, props.TRAN_PREPARED_QUEUE_OFFSET, props.POP_CK, *props.OWN),
        *("RECONSUME_TIME", "MAX_RECONSUME_TIMES"),
    )
)
"""Properties of earlier deliveries. They would delay the copy, or start a transaction."""


class ResendRejected(Exception):
    """A letter cannot be resent, or another resend runs. The text names the remedy."""


class DeadLetter(NamedTuple):
    record: Record
    broker_name: str
    is_resent: bool
    """Whether a copy of it is stored."""

    @property
    def message_id(self) -> str:
        return offset_message_id(self.record.store_host, self.record.position)

    @property
    def topic(self) -> str | None:
        """The topic that the message was sent to; None if the letter does not name it."""
        return self.record.message.properties.get(props.RETRY_TOPIC)


class ResentCopy(NamedTuple):
    """A copy that the broker stored."""

    message_id: str
    status: SendStatus


class DeadLetters:
    """`async with DeadLetters("127.0.0.1:9876", "billing") as letters: async for letter in letters.read(): ...`

    Raises ValueError for an invalid group or address, and TlsError for a bad file.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        *,
        timeout_ms: int = 5000,
        access_key: AccessKey | None = None,
        tls: Tls | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_group(group)
        self.group = group
        self._dead, self._retry = names.dead_letter_topic(group), names.retry_topic(group)
        self._clock = clock or SystemClock()
        self._session = Session(
            namesrv,
            clock=self._clock,
            beat=self._heartbeat,
            timeout_s=timeout_ms / 1000,
            access_key=access_key,
            tls=tls,
        )
        self._producers = producer_group(group)
        self._addresses: dict[str, str] | None = None
        self._losses: dict[str, int] | None = None
        """The lost connections of each broker when the resend began; None before."""

    async def start(self) -> None:
        await self._session.start()

    async def stop(self) -> None:
        await self._session.stop(producer_group=self._producers)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def read(self) -> AsyncIterator[DeadLetter]:
        """Yield the letters, broker by broker, the oldest first. Raises CallError, Refused.

        A group without a dead letter topic has none. A copy that became a dead letter again is a letter of its own.
        """
        for broker_name, address in (await self._masters()).items():
            resent: set[str] = set()
            for topic in (self._retry, self._dead):
                async for record in self._records(topic, broker_name, address):
                    resent.add(record.message.properties.get(RESENT, ""))
            async for record in self._records(self._dead, broker_name, address):
                message_id = offset_message_id(record.store_host, record.position)
                yield DeadLetter(record, broker_name, message_id in resent)

    async def begin_resend(self) -> None:
        """Register as the only resend of the group; call it before `read`.

        Raises ResendRejected if another one runs, CallError, Refused.
        """
        await self._session.greet_everywhere()  # and again every 30 s, while it runs
        for address in (await self._masters()).values():
            ext = headers.write(headers.ProducerGroupHeader(producer_group=self._producers))
            request = Command(code=RequestCode.GET_PRODUCER_CONNECTION_LIST, ext=ext)
            answer = await self._session.connections.to(address).ask(request, self._session.timeout_s)
            members = bodies.read(answer.body, administration.GroupConnections).connection_set
            others = [one for one in members if one.client_id != self._session.client_id]
            if others:
                raise ResendRejected(
                    f"another resend of the group {self.group} runs at {others[0].client_addr}: wait for its end. A "
                    "broker forgets it within two minutes if its machine died"
                )
            if len(members) != 1:
                raise CallError(f"{address} did not accept the heartbeat of the resend: try again")
        self._losses = dict(self._session.losses)

    async def resend(self, letter: DeadLetter) -> ResentCopy:
        """Append a copy of `letter` to the retry topic, at the broker of the letter.

        Raises ResendRejected if the letter cannot be copied. Raises Refused when the broker rejects the copy. Raises
        CallError without an answer: then the copy may be stored, and the next resend looks for it.
        """
        address = (await self._masters())[letter.broker_name]
        request = self._copy(letter)
        connection = self._session.connections.to(address)
        if self._losses is None:
            raise RuntimeError("call begin_resend before resend")
        if not connection.is_open or self._session.losses[address] != self._losses.get(address, 0):
            raise CallError(f"the connection to {address} was lost, and another resend may have begun: run it again")
        answer = await connection.call(request, self._session.timeout_s)  # no other task runs before it is written
        if answer.code not in STATUS:
            raise Refused(answer)
        copy = ResentCopy(answer.ext.get("msgId", ""), STATUS[answer.code])
        await self._check_place(address, copy)
        return copy

    # How -----------------------------------------------------------------------------------------------------------

    async def _masters(self) -> dict[str, str]:
        """Return the addresses of the masters by broker name: those of the first call."""
        if self._addresses is None:
            self._addresses = await self._session.routes.brokers()
        return self._addresses

    async def _records(self, topic: str, broker_name: str, address: str) -> AsyncIterator[Record]:
        """Yield the records of a topic at a broker. A topic that does not exist there has none.

        The broker itself knows its topics at once; a name server knows a new one a moment later.
        """
        connection, timeout_s = self._session.connections.to(address), self._session.timeout_s
        ext = headers.write(headers.TopicHeader(topic=topic))
        answer = await connection.call(Command(code=RequestCode.GET_TOPIC_CONFIG, ext=ext), timeout_s)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer)
        for queue_id in range(bodies.read(answer.body, bodies.TopicConfig).read_queue_nums):
            queue = QueueName(topic=topic, broker_name=broker_name, queue_id=queue_id)
            async for record in read_queue(connection, queue, timeout_s):
                yield record

    def _copy(self, letter: DeadLetter) -> Command:
        """Return the request that stores the copy of a letter. Raises ResendRejected."""
        record, name = letter.record, letter.message_id
        if letter.topic is None:
            raise ResendRejected(
                f"the letter {name} does not name its topic (RETRY_TOPIC): send its body with `wheelmq send`"
            )
        if not record.body_is_intact:
            raise ResendRejected(f"the body of the letter {name} does not match its checksum: choose other letters")
        message = record.message
        kept = {
            key: value
            for key, value in message.properties.items()
            if key not in _DROPPED and not key.startswith("TIMER_")
        }
        try:
            properties = encode_properties(kept | {RESENT: name}).decode()
        except ValueError as error:
            raise ResendRejected(f"the letter {name} has no room for {RESENT}: {error}") from None
        header = headers.SendHeader(
            producer_group=self._producers,
            topic=self._retry,
            default_topic=names.AUTO_CREATE_TOPIC,
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=message.sys_flag & _COMPRESSION,
            born_timestamp=message.born_ms,
            flag=message.flag,
            properties=properties,
            batch=False,
        )
        return Command(code=RequestCode.SEND_MESSAGE_V2, ext=headers.write_send_v2(header), body=message.body)

    async def _check_place(self, address: str, copy: ResentCopy) -> None:
        """Raise ResendRejected if the broker made the copy a dead letter at once, as for a group in order."""
        position = parse_offset_message_id(copy.message_id)[1]
        request = Command(
            code=RequestCode.VIEW_MESSAGE_BY_ID, ext=headers.write(headers.ViewMessageHeader(offset=position))
        )
        answer = await self._session.connections.to(address).ask(request, self._session.timeout_s)
        [record] = read_records(answer.body)
        if record.message.topic == self._dead:
            raise ResendRejected(
                f"the group {self.group} consumes in order, so the broker made the copy a dead letter again "
                f"({copy.message_id}). Stop the members of the group, wait a minute until their locks end, and run the "
                "resend again"
            )

    def _heartbeat(self) -> Heartbeat:
        producers = [ProducerData(group_name=self._producers)]
        return Heartbeat(client_id=self._session.client_id, producer_data_set=producers)


def producer_group(group: str) -> str:
    """Return the name of the producer group that a resend of `group` registers in."""
    name = PRODUCERS + group
    if len(name) <= names.GROUP_CHARS_MAX:
        return name
    return PRODUCERS + hashlib.sha256(group.encode()).hexdigest()
