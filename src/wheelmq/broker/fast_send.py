"""The fast path of a send: one kernel call for all frames that a connection has received.

It works on the store's own state: the mapped log, the queue table and the journal. The plain code serves the frames
that the kernel leaves, one by one, on the same state. `left` counts them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from wheelmq.broker.connection import Connection
from wheelmq.broker.topic_arrays import TopicArrays
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.kernels import send
from wheelmq.formats.kernels import send_fields as fields
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.system.failpoint import reach

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

SENDS: Final = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE))
OUT_BYTES = 1 << 20
_BLANK = np.zeros(0, np.uint8)

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


class FastSend:
    """Calls the kernel for the frames that connections receive."""

    def __init__(self, broker: Broker, arrays: TopicArrays) -> None:
        self._broker = broker
        self._arrays = arrays
        self._out: Bytes = np.zeros(OUT_BYTES, np.uint8)
        self._state: Integers = np.zeros(send.STATE, np.int64)
        self._parameters: Integers = np.zeros(fields.PARAMETERS, np.int64)
        self.take_settings()
        self.left = 0
        """Frames left to the plain code."""

    def take_settings(self) -> None:
        """Copy the broker's settings: at the start, and after each change."""
        broker = self._broker
        settings = broker.settings
        marks = {
            props.MSG_REGION: settings.region_id,
            props.TRACE_ON: "true" if settings.trace_on else "false",
            props.CLUSTER: settings.cluster,
        }
        self._suffix = np.frombuffer(props.encode(marks), np.uint8)
        trace = marks[props.TRACE_ON]
        head = f'{{"code":0,"extFields":{{"MSG_REGION":"{settings.region_id}","TRACE_ON":"{trace}","msgId":"'
        self._answer_head = np.frombuffer(head.encode(), np.uint8)
        self._broker_name = np.frombuffer(settings.broker_name.encode(), np.uint8)
        fixed = {
            fields.STORE_IP: int.from_bytes(broker.host.address, "big"),
            fields.STORE_PORT: broker.host.port,
            fields.BODY_MAX: settings.body_bytes_max,
            fields.PRECISION_MS: settings.timer_precision_ms,
            fields.DELAY_MS_MAX: settings.timer_max_delay_seconds * 1000,
            fields.TIMER_ON: int(settings.timer_wheel_enable),
            fields.SYNC: int(broker.flush.is_sync),
            fields.TIMER_ROW: broker.store.queues.row(TIMER_TOPIC, 0),
            fields.SLOT_LIMIT: broker.timer.congestion.limit if broker.timer.congestion.is_limited else -1,
        }
        for place, value in fixed.items():
            self._parameters[place] = value

    @property
    def served(self) -> int:
        """Frames that the kernel served."""
        return int(self._state[send.SERVED])

    def serve(self, connection: Connection, buffer: Bytes, at: int, end: int) -> int:
        """Serve the sends at the front of buffer[at:end]. Returns the end of the last one served."""
        broker = self._broker
        log = broker.store.log
        has_room = log.files.has_room(log.end)
        if not has_room or len(connection.peer.address) != 4:
            return at
        if broker.admission.rejection() is not None or broker.admission.before_opening() is not None:
            return at
        left = 0 if broker.hooks.see_sends else broker.overload.sends_left(connection)
        if left <= 0:
            return at
        self._arrays.refresh()
        state, parameters, journal = self._state, self._parameters, broker.store.journal
        file = log.files.file_at(log.end)
        base = log.end - log.end % log.files.file_bytes
        state[send.AT] = at
        state[send.LOG_AT] = log.end - base
        state[send.ROWS] = journal.count
        state[send.OUT] = 0
        parameters[fields.NOW_MS] = broker.clock.now_ms()
        parameters[fields.STORE_MS] = store_ms = log.store_ms()
        parameters[fields.PEER_IP] = int.from_bytes(connection.peer.address, "big")
        parameters[fields.PEER_PORT] = connection.peer.port
        parameters[fields.LOG_BASE] = base
        served = self.served
        log_end, begin_s = log.end, broker.clock.monotonic()
        parameters[fields.SERVED_MAX] = served + left
        while True:
            outcome = self._call(buffer, end, file.array)
            log.advance(LogPosition(base + int(state[send.LOG_AT])), store_ms)
            journal.count = int(state[send.ROWS])
            reach("send.appended")
            self._answer(connection, int(state[send.OUT]))
            if outcome != send.OUT_FULL:
                break
            state[send.OUT] = 0
        self.left += outcome == send.NOT_MINE
        broker.overload.took_sends(self.served - served)
        elapsed_s = broker.clock.monotonic() - begin_s
        broker.stats.put_times.note_kernel_call(elapsed_s, self.served - served, log.end - log_end)
        return int(state[send.AT])

    def _call(self, buffer: Bytes, end: int, log: Bytes) -> int:
        arrays, store = self._arrays, self._broker.store
        return send.accept_sends(
            buffer,
            end,
            log,
            store.queues.next_offset,
            store.journal.table,
            self._out,
            arrays.slots,
            arrays.rows,
            arrays.names,
            arrays.queue_rows,
            self._broker.timer.congestion.table,
            self._suffix,
            self._answer_head,
            self._broker_name,
            self._parameters,
            self._state,
        )

    def _answer(self, connection: Connection, count: int) -> None:
        """Send the answers that the kernel wrote, now or once the log is on disk."""
        if not count:
            return
        frames = self._out[:count].tobytes()
        if self._broker.flush.is_sync:
            self._broker.flush.answer_when_durable(self._broker.store.log.end, connection, frames)
        else:
            connection.send(frames)
