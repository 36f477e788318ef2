"""Checks that ask producers how their transactions ended (RocketMQ: TransactionalMessageServiceImpl.check).

A round covers the messages that were pending at its start, a part of them in each tick. It puts each old half message
back at the end of its queue, and sends the new place to a producer, so the half queue advances.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from wheelmq.broker.calls import Calls
from wheelmq.broker.connection import Connection
from wheelmq.broker.replication.role import Role
from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.state.clients import Clients
from wheelmq.broker.transactions import halves
from wheelmq.broker.transactions.queue_records import queue_record
from wheelmq.broker.transactions.transactions import Transactions
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record, encode_record
from wheelmq.formats.disk.message_id import offset_message_id
from wheelmq.formats.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.store.store import Appended, PropertiesTooLong, RecordTooLong, Store
from wheelmq.system.failpoint import reach

log = logging.getLogger(__name__)

LOOKS_MAX: Final = 200
"""Half messages that one tick checks."""
HOUR_MS: Final = 3_600_000


class TransactionChecks:
    """The check rounds. Times of the ticks are monotonic milliseconds."""

    def __init__(
        self,
        transactions: Transactions,
        store: Store,
        settings: BrokerSettings,
        role: Role,
        clients: Clients,
        calls: Calls,
        rejection: Callable[[], str | None],
        may_check: Callable[[Connection, str], bool],
    ) -> None:
        """While `rejection` returns a reason to store no messages, no half message is put back.

        `may_check` returns whether a producer may see the messages of a topic. Anyone can join a producer group.
        """
        self._transactions = transactions
        self._store = store
        self._settings = settings
        self._clients = clients
        self._calls = calls
        self._rejection = rejection
        self._may_check = may_check
        self._role = role
        self._due_ms = store.clock.monotonic_ms() + settings.transactions.check_interval_ms
        """When the next round is due."""
        self._at = 0
        self._stop: int | None = None
        """End of the running round as a queue offset, or None between rounds."""
        self._asked = 0

    def next_ms(self) -> int | None:
        """Return the time of the next work, or None on a slave, which checks nothing."""
        return self._transactions.retry.next_ms(self._due_ms) if self._role.is_master else None

    def tick(self, monotonic_ms: int) -> int:
        """Start a check round if it is due, or continue it. Return the number of appended records. Raises OSError."""
        if monotonic_ms < self._due_ms or not self._role.is_master:
            return 0
        return self._transactions.retry.run(monotonic_ms, lambda: self._continue_round(monotonic_ms))

    def _continue_round(self, monotonic_ms: int) -> int:
        pending = self._transactions.pending
        if self._stop is None:
            self._at, self._stop = pending.first, self._store.queues.end(HALF_TOPIC, halves.HALF_QUEUE)
        appended = looks = 0
        self._at = max(self._at, pending.first)
        goes_on = self._rejection() is None
        while goes_on and self._at < self._stop and looks < LOOKS_MAX:
            if not pending.is_gone(self._at):
                looks += 1
                count = self._check_half(self._at)
                goes_on = count is not None
                appended += count or 0
            self._at += goes_on
        if not goes_on or self._at >= self._stop:
            self._stop, self._due_ms = None, monotonic_ms + self._settings.transactions.check_interval_ms
        return appended

    def _check_half(self, offset: int) -> int | None:
        """Check the half message at `offset`. Returns the number of appended records; None if later ones are young."""
        transactions = self._transactions
        half = queue_record(self._store, HALF_TOPIC, offset)
        if half is None:
            log.critical(
                "transactions: the half message at queue offset %d is no longer in the log, so its transaction "
                "cannot end",
                offset,
            )
            transactions.pending.drop(offset)
            return 0
        age_ms = self._store.clock.now_ms() - half.message.born_ms
        hopeless = self._why_hopeless(half, age_ms)
        if hopeless is not None:
            return self._give_up(half, hopeless)
        own_ms = halves.immunity_ms(half.message, self._settings.transactions.time_out_ms)
        if own_ms is None and 0 <= age_ms < self._settings.transactions.time_out_ms:
            return None
        is_asked = own_ms is None or age_ms >= own_ms
        try:
            stored = transactions.put_back(half, checked=is_asked)
        except (PropertiesTooLong, RecordTooLong) as error:  # Apache RocketMQ accepts messages that leave no room
            return self._give_up(half, f"the broker cannot store it again: {error}")
        if is_asked:
            self._ask(half, stored)
        return 1

    def _why_hopeless(self, half: Record, age_ms: int) -> str | None:
        """Return the reason to check `half` no more, or None to check it."""
        times = halves.check_times(half.message)
        try:
            halves.real_queue(half.message)
        except halves.Unending as error:
            return str(error)
        if times < self._settings.transactions.check_max and age_ms <= self._settings.expiry.reserved_hours * HOUR_MS:
            return None
        return f"its producer was asked {times} times, and it is {age_ms // 1000} s old"

    def _give_up(self, half: Record, why: str) -> int:
        """Move `half` to the topic of discarded transactions. Return the number of appended records."""
        key = half.message.properties.get(props.UNIQ_KEY)
        try:
            self._transactions.discard(half)
        except RecordTooLong as error:
            log.critical("transactions: %s is set aside until the next start: %s", key, error)
            self._transactions.pending.drop(half.queue_offset)
            return 0
        log.error("transactions: the broker moves %s to %s: %s", key, CHECK_MAX_TIME_TOPIC, why)
        return 1

    def _ask(self, half: Record, stored: Appended) -> None:
        """Ask a producer of the group, if one is connected. `stored` is the new place of the half message."""
        group = half.message.properties.get(props.PRODUCER_GROUP, "")
        topic, _ = halves.real_queue(half.message)
        connection = self._clients.available_producer(group, self._asked, lambda one: self._may_check(one, topic))
        self._asked += 1
        if connection is None:
            log.warning("transactions: no producer of the group %r is connected to check a transaction", group)
            return
        unique_key = half.message.properties.get(props.UNIQ_KEY)
        fields = headers.texts(
            topic=HALF_TOPIC,
            tranStateTableOffset=stored.queue_offset,
            commitLogOffset=stored.position,
            msgId=unique_key,
            transactionId=unique_key,
            offsetMsgId=offset_message_id(self._store.host, stored.position),
            bname=self._settings.broker.name,
        )
        body = self._body(half, stored)
        self._calls.send_oneway(connection, Command(code=RequestCode.CHECK_TRANSACTION_STATE, ext=fields, body=body))
        reach("transaction.asked")

    def _body(self, half: Record, stored: Appended) -> bytes:
        """Return the message as its producer knows it: in its real queue, and at the place of its half message."""
        message = halves.put_back(half, checked=True)
        message.topic, message.queue_id = halves.real_queue(half.message)
        message.properties.pop(props.TRAN_PREPARED_QUEUE_OFFSET)
        return encode_record(
            message,
            props.encode(message.properties),
            queue_offset=stored.queue_offset,
            position=stored.position,
            store_ms=stored.store_ms,
            store_host=self._store.host,
        )
