"""The fast path of a send: one kernel call for all frames that a connection has received.

It works on the store's own mapped log, queue table and journal, like the plain code for the frames that it leaves.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wheelmq.broker.access import AccessControl
from wheelmq.broker.admission.overload import OverloadGuard
from wheelmq.broker.admission.sends import Admission
from wheelmq.broker.connection import Connection
from wheelmq.broker.durability import Durability
from wheelmq.broker.fast import send
from wheelmq.broker.fast import send_fields as fields
from wheelmq.broker.hooks import Hooks
from wheelmq.broker.put_times import PutTimes
from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.signed_sends import SignedSends
from wheelmq.broker.topic_arrays import TopicArrays
from wheelmq.delay.timer.congestion import Congestion
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.units import LogPosition
from wheelmq.store.store import Store
from wheelmq.system.failpoint import reach

OUT_BYTES = 1 << 20
_BLANK = np.zeros(0, np.uint8)

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


class FastSend:
    def __init__(
        self,
        store: Store,
        congestion: Congestion,
        arrays: TopicArrays,
        settings: BrokerSettings,
        durability: Durability,
        *,
        admission: Admission,
        overload: OverloadGuard,
        hooks: Hooks,
        access: AccessControl,
        put_times: PutTimes,
    ) -> None:
        self._log = store.log
        self._journal = store.journal
        self._queues = store.queues
        self._clock = store.clock
        self._host = store.host
        self._congestion = congestion
        self._arrays = arrays
        self._settings = settings
        self._durability = durability
        self._admission = admission
        self._overload = overload
        self._hooks = hooks
        self._signed_sends = SignedSends(access) if access.is_on else None
        """None without authentication: the kernel then gets the bytes as they are."""
        self._put_times = put_times
        self._out: Bytes = np.zeros(OUT_BYTES, np.uint8)
        self._state: Integers = np.zeros(send.STATE, np.int64)
        self._parameters: Integers = np.zeros(fields.PARAMETERS, np.int64)
        self.take_settings()
        self.left = 0
        """Frames left to the plain code."""

    def take_settings(self) -> None:
        """Copy the broker's settings: at the start, and after each change."""
        settings, congestion = self._settings, self._congestion
        marks = settings.broker.record_properties()
        self._suffix = np.frombuffer(props.encode(marks), np.uint8)
        trace = marks[props.TRACE_ON]
        head = f'{{"code":0,"extFields":{{"MSG_REGION":"{settings.broker.region_id}","TRACE_ON":"{trace}","msgId":"'
        self._answer_head = np.frombuffer(head.encode(), np.uint8)
        self._broker_name = np.frombuffer(settings.broker.name.encode(), np.uint8)
        fixed = {
            fields.STORE_IP: int.from_bytes(self._host.address, "big"),
            fields.STORE_PORT: self._host.port,
            fields.BODY_MAX: settings.requests.body_bytes_max,
            fields.PRECISION_MS: settings.timer.precision_ms,
            fields.DELAY_MS_MAX: settings.timer.max_delay_seconds * 1000,
            fields.TIMER_ON: int(settings.timer.enable),
            fields.SYNC: int(self._durability.is_sync),
            fields.TIMER_ROW: self._queues.row(TIMER_TOPIC, 0),
            fields.SLOT_LIMIT: congestion.limit if congestion.is_limited else -1,
        }
        for place, value in fixed.items():
            self._parameters[place] = value

    @property
    def served(self) -> int:
        """Frames that the kernel served."""
        return int(self._state[send.SERVED])

    def begin_read(self) -> None:
        """Forget what is known about the buffer, which other bytes fill now."""
        if self._signed_sends is not None:
            self._signed_sends.begin_read()

    def serve(self, connection: Connection, buffer: Bytes, at: int, end: int) -> int:
        """Serve the sends at the front of buffer[at:end]. Returns the end of the last one served."""
        log = self._log
        room_end = log.files.room_end(log.end)
        if room_end == log.end or len(connection.peer.address) != 4:
            return at
        if not self._admission.takes_sends:
            return at
        left = 0 if self._hooks.see_sends else self._overload.sends_left(connection)
        if left <= 0:
            return at
        if self._signed_sends is not None:
            end = self._signed_sends.end_of_allowed(connection, buffer, at, end, left)
            if end == at:
                return at
        self._arrays.refresh()
        state, parameters, journal = self._state, self._parameters, self._journal
        base = log.end - log.end % log.files.file_bytes
        room = log.files.file_at(log.end).array[: room_end - base]
        state[send.AT] = at
        state[send.LOG_AT] = log.end - base
        state[send.ROWS] = journal.count
        state[send.OUT] = 0
        parameters[fields.NOW_MS] = self._clock.now_ms()
        parameters[fields.STORE_MS] = store_ms = log.store_ms()
        parameters[fields.PEER_IP] = int.from_bytes(connection.peer.address, "big")
        parameters[fields.PEER_PORT] = connection.peer.port
        parameters[fields.LOG_BASE] = base
        served = self.served
        log_end, begin_s = log.end, self._clock.monotonic()
        parameters[fields.SERVED_MAX] = served + left
        while True:
            outcome = self._call(buffer, end, room)
            log.advance(LogPosition(base + int(state[send.LOG_AT])), store_ms)
            journal.count = int(state[send.ROWS])
            reach("send.appended")
            self._answer(connection, int(state[send.OUT]))
            if outcome != send.OUT_FULL:
                break
            state[send.OUT] = 0
        self.left += outcome == send.NOT_MINE
        self._overload.took_sends(self.served - served)
        elapsed_s = self._clock.monotonic() - begin_s
        self._put_times.note_kernel_call(elapsed_s, self.served - served, log.end - log_end)
        return int(state[send.AT])

    def _call(self, buffer: Bytes, end: int, log: Bytes) -> int:
        arrays = self._arrays
        return send.accept_sends(
            buffer,
            end,
            log,
            self._queues.next_offset,
            self._journal.table,
            self._out,
            arrays.slots,
            arrays.rows,
            arrays.names,
            arrays.queue_rows,
            self._congestion.table,
            self._suffix,
            self._answer_head,
            self._broker_name,
            self._parameters,
            self._state,
        )

    def _answer(self, connection: Connection, count: int) -> None:
        """Send the answers that the kernel wrote, now or once the log is safe."""
        if not count:
            return
        frames = self._out[:count].tobytes()
        if self._durability.is_sync:
            self._durability.answer_when_safe(self._log.end, connection, frames)
        else:
            connection.send(frames)
