"""A broker without sockets, threads or a clock of its own, for tests.

    with BrokerHarness(folder) as harness:
        harness.send("T", b"in a second", delay_ms=1000)
        harness.advance(1000)
        assert harness.bodies("T") == [b"in a second"]

The harness feeds bytes, ticks the broker whenever it asks for a tick, and shows answers at the end of a tick. It stops
the broker cleanly, as `kill -9` would, or as a power cut would.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from wheelmq.auth.audit import AuditSink
from wheelmq.broker.broker import Broker, open_broker
from wheelmq.broker.fast.warm import warm
from wheelmq.broker.parts import ProcessContext
from wheelmq.broker.settings import BrokerSettings
from wheelmq.config.setting import nested, tables_of
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Host, Record, decode_record
from wheelmq.formats.wire import frame, headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command, FrameError
from wheelmq.formats.wire.headers import PULL_SUBSCRIPTION, PULL_SUSPEND
from wheelmq.system.workers import InlineWorker, Workers
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.workers import HeldWorker

SMALL: dict[str, Any] = {
    "log_file_bytes": 1 << 20,
    "queue_file_bytes": 300 * 20,
    "log_files_ahead": 0,
    "checkpoint_ms": 1000,
    "snapshot_ms": 2000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    "timer_log_file_bytes": 52 * 100 + 16,
    "timer_slots": 60,
    "timer_roll_window_slots": 20,
    "timer_lead_ms": 5000,
    "block_length_seconds": 10,
    "block_log_file_bytes": 16 << 10,
    "block_queue_file_bytes": 24 * 50,
}
"""Small sizes for tests: files fill up within a test, and are created on demand.

The wheel turns once within a test. The roll window is 20 s, and a block has 10 s.
"""

log = logging.getLogger(__name__)

TICKS_MAX = 10_000
"""The harness fails if the broker asks for more ticks than this at one moment."""


class NoAnswer(AssertionError):
    """The tick did not answer the request: it is held or oneway, or its connection is lost."""


class Ask(NamedTuple):
    connection: FakeConnection
    opaque: int

    @property
    def answer(self) -> Command | None:
        return self.connection.answers.get(self.opaque)


class Pulled(NamedTuple):
    answer: Command
    records: list[Record]

    @property
    def next_offset(self) -> int:
        return int(self.answer.ext["nextBeginOffset"])


class BrokerHarness:
    """A running broker in `folder`. `settings` are BrokerSettings by name, and override SMALL."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: ManualClock | None = None,
        disk: SimulatedDisk | None = None,
        worker: InlineWorker | HeldWorker | None = None,
        background: InlineWorker | HeldWorker | None = None,
        reading: InlineWorker | HeldWorker | None = None,
        block_worker: InlineWorker | HeldWorker | None = None,
        tables: InlineWorker | HeldWorker | None = None,
        seed: int = 0,
        audit_sink: AuditSink | None = None,
        starts: bool = True,
        **settings: Any,
    ) -> None:
        """Create the harness, and start its broker unless `starts` is False."""
        self.clock = ManualClock() if clock is None else clock
        self.disk = SimulatedDisk() if disk is None else disk
        self.worker = InlineWorker() if worker is None else worker
        self.background = self.worker if background is None else background
        self.reading = self.background if reading is None else reading
        self.tables = InlineWorker() if tables is None else tables
        self.block_worker = self.worker if block_worker is None else block_worker
        self._workers = Workers(
            flushing=self.worker,
            blocks=self.block_worker,
            background=self.background,
            reading=self.reading,
            tables=self.tables,
            timers=self.background,
            populating=self.background,
        )
        self.randomness = Random(seed)
        self._process = ProcessContext(audit_sink=audit_sink)
        self.allows_failed_steps = False
        """Whether steps of a tick may fail. Otherwise their error is raised in the test."""
        self._settings = {**SMALL, **settings}
        self._folder = folder
        self._peers = 0
        self._connections: list[FakeConnection] = []
        self._client: FakeConnection | None = None
        self._broker: Broker | None = None
        if starts:
            self.start()

    @property
    def broker(self) -> Broker:
        assert self._broker is not None, "the broker is stopped"
        return self._broker

    @property
    def is_running(self) -> bool:
        return self._broker is not None

    @property
    def settings(self) -> BrokerSettings:
        """The settings of the next start."""
        tables = nested(tables_of(BrokerSettings), {"store_path": self._folder, **self._settings})
        return msgspec.convert(tables, BrokerSettings, strict=False)

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._broker is not None:
            self.crash()

    # Start and stop ------------------------------------------------------------------------------------------------

    def start(self, **settings: Any) -> None:
        """Start a broker on the folder. `settings` change those it had. A start that raises leaves no broker."""
        self.open(**settings)
        self.tick()  # a server ticks once it listens

    def change(self, **settings: Any) -> None:
        """Change settings for the next start."""
        self._settings.update(settings)

    def open(self, **settings: Any) -> None:
        """Start a broker that does not tick yet."""
        assert self._broker is None, "the broker is already running"
        self.change(**settings)
        try:
            warm(log.warning)
            self._broker = open_broker(
                self.settings,
                disk=self.disk,
                clock=self.clock,
                workers=self._workers,
                randomness=self.randomness,
                process=self._process,
            )
        except BaseException:
            self.disk.release_locks()
            raise
        if self._broker.parts.index is not None:
            self._broker.parts.index.gather_s = 0.0  # a test may query a message in the millisecond of its send

    def stop(self) -> None:
        """Stop cleanly: the workers finish their jobs, and every connection is closed."""
        broker = self.broker
        self._workers.close()
        for connection in list(self._connections):
            self.lose(connection)
        broker.close()
        self._gone()

    def crash(self) -> None:
        """Stop as `kill -9` would: the process is gone, and the system keeps what it wrote."""
        for worker in self._workers:
            if isinstance(worker, HeldWorker):
                worker.forget()
        for connection in self._connections:
            connection.drop()
        self._gone()

    def cut_power(self, keep: float = 0.5) -> None:
        """Cut the power: each page that was not synced is kept with probability `keep`."""
        self.crash()
        self.disk.cut_power(self.randomness, keep)

    def restart(self, *, clean: bool = True, **settings: Any) -> None:
        """Stop, cleanly or as `kill -9` would, and start again."""
        if clean:
            self.stop()
        else:
            self.crash()
        self.start(**settings)

    def _gone(self) -> None:
        self._connections.clear()
        self._client = None
        self._broker = None
        self.disk.release_locks()

    # Connections ---------------------------------------------------------------------------------------------------

    def connect(self, address: bytes = b"\x0a\0\0\1") -> FakeConnection:
        self._peers += 1
        connection = FakeConnection(Host(address, 40_000 + self._peers))
        self.accept(connection)
        return connection

    def accept(self, connection: FakeConnection) -> None:
        """Let the broker serve a new connection."""
        self._connections.append(connection)

    @property
    def client(self) -> FakeConnection:
        if self._client is None or not self._client.is_open:
            self._client = self.connect()
        return self._client

    def lose(self, connection: FakeConnection) -> None:
        connection.drop()
        self._notify_lost(connection)

    def _notify_lost(self, connection: FakeConnection) -> None:
        if not connection.is_lost:
            connection.is_lost = True
            self._connections.remove(connection)
            self.broker.connection_lost(connection)

    # Requests ------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes, connection: FakeConnection | None = None) -> None:
        """Receive bytes. Bytes that are no frame close the connection, as in the server."""
        connection = connection or self.client
        connection.unread += data
        buffer = memoryview(bytearray(connection.unread))
        try:
            taken = self.broker.receive(connection, buffer, len(buffer))
        except FrameError:
            connection.close()
            self._notify_lost(connection)
            return
        del connection.unread[:taken]

    def submit(
        self, command: Command, connection: FakeConnection | None = None, *, oneway: bool = False, binary: bool = False
    ) -> Ask:
        connection = connection or self.client
        command.opaque = connection.next_opaque(oneway=oneway)
        command.flag = frame.FLAG_ONEWAY if oneway else 0
        self.feed(frame.encode_binary(command) if binary else frame.encode(command), connection)
        return Ask(connection, command.opaque)

    def ask(self, command: Command, connection: FakeConnection | None = None, *, binary: bool = False) -> Command:
        """Receive a request, tick once, and return the answer. Raises NoAnswer."""
        asked = self.submit(command, connection, binary=binary)
        self.tick()
        if asked.answer is None:
            raise NoAnswer(f"the request with code {command.code} has no answer after a tick")
        return asked.answer

    def ask_code(
        self, code: RequestCode, body: bytes = b"", connection: FakeConnection | None = None, **fields: object
    ) -> Command:
        return self.ask(Command(code=code, ext=headers.texts(**fields), body=body), connection)

    # Time ----------------------------------------------------------------------------------------------------------

    def tick(self, *, by_event: bool = True) -> None:
        """End a round, tick as if an event or the time caused it, and write the answers."""
        self.broker.end_round()
        self._raise_failed()
        self.broker.tick(by_event=by_event)
        self._raise_failed()
        self._write()

    def end_round(self) -> bool:
        """End a round, and tick if a tick is due. Returns whether one was due."""
        is_due = self.broker.end_round()
        self._raise_failed()
        if is_due:
            self.broker.tick(by_event=False)
            self._raise_failed()
        self._write()
        return is_due

    def _raise_failed(self) -> None:
        assert not self.disk.behind_space, self.disk.behind_space
        steps = self.broker.parts.steps
        error, steps.last_error = steps.last_error, None
        if error is not None and not self.allows_failed_steps:
            raise error

    def _write(self) -> None:
        for connection in list(self._connections):
            connection.flush()
            if not connection.is_open:
                self._notify_lost(connection)

    def settle(self, *, by_event: bool = True) -> None:
        """Tick until the broker asks for no further tick at this moment."""
        for _ in range(TICKS_MAX):
            self.tick(by_event=by_event)
            if self.broker.next_tick_ms() > 0:
                return
        raise AssertionError("the broker always has more work")

    def advance(self, ms: int, work: Callable[[], object] | None = None, every_ms: int = 100) -> None:
        """Let `ms` pass. The broker is ticked at each moment that it asks for, and at the end.

        `work` is called every `every_ms`, as a round of requests.
        """
        self.settle()
        end_ms = self.now_ms + ms
        next_work_ms = self.now_ms if work is not None else end_ms + 1
        while True:
            if work is not None and self.now_ms >= next_work_ms:
                work()
                self.end_round()
                next_work_ms = self.now_ms + every_ms
            if self.now_ms >= end_ms:
                self.settle()
                return
            wait_ms = self.broker.next_tick_ms()
            if wait_ms == 0:
                self.settle(by_event=False)
                wait_ms = self.broker.next_tick_ms()
            passes_ms = min(wait_ms, end_ms - self.now_ms, max(1, next_work_ms - self.now_ms))
            self.clock.advance(passes_ms)
            if passes_ms == wait_ms:
                self.settle(by_event=False)

    def advance_to_next(self) -> int:
        """Let time pass until the broker asks for a tick, and tick. Returns the time that passed."""
        self.settle()
        wait_ms = self.broker.next_tick_ms()
        self.clock.advance(wait_ms)
        self.settle()
        return wait_ms

    def run_jobs(self, count: int | None = None) -> int:
        """Let each HeldWorker do its first `count` jobs, or all, and tick as the server would. Returns their number."""
        workers = (self.worker, self.block_worker, self.background, self.tables)
        held = {id(one): one for one in workers if isinstance(one, HeldWorker)}
        if not held:
            return 0
        done = sum(one.run(count) for one in held.values())
        self.tick()
        return done

    # Client operations ---------------------------------------------------------------------------------------------

    def send_command(
        self,
        topic: str,
        body: bytes = b"body",
        *,
        queue_id: int = 0,
        delay_ms: int | None = None,
        deliver_ms: int | None = None,
        properties: dict[str, str] | None = None,
        **letters: object,
    ) -> Command:
        """Return the request of a send (V2). `letters` override header fields; None removes a field."""
        pairs = dict(properties or {})
        if delay_ms is not None:
            pairs[props.TIMER_DELAY_MS] = str(delay_ms)
        if deliver_ms is not None:
            pairs[props.TIMER_DELIVER_MS] = str(deliver_ms)
        fields: dict[str, object] = {
            "a": "producers",
            "b": topic,
            "c": "TBW102",
            "d": 4,
            "e": queue_id,
            "f": 0,
            "g": self.now_ms,
            "h": 0,
            "i": props.encode(pairs).decode(),
            "j": 0,
            "k": False,
            "l": 16,
            "m": False,
            "n": self.broker.parts.settings.broker.name,
        }
        fields.update(letters)
        return Command(code=RequestCode.SEND_MESSAGE_V2, ext=headers.texts(**fields), body=body)

    def send(self, topic: str, body: bytes = b"body", **options: Any) -> Command:
        """Send, tick and return the answer. Options are those of `send_command`, and `connection`."""
        connection = options.pop("connection", None)
        return self.ask(self.send_command(topic, body, **options), connection)

    def pull_command(
        self, topic: str, queue_id: int = 0, offset: int = 0, *, hold_ms: int = 0, **fields: object
    ) -> Command:
        """Return the request of a pull with its own subscription. The broker may hold it for `hold_ms`."""
        header: dict[str, object] = {
            "consumerGroup": "consumers",
            "topic": topic,
            "queueId": queue_id,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": PULL_SUBSCRIPTION | (PULL_SUSPEND if hold_ms else 0),
            "commitOffset": 0,
            "suspendTimeoutMillis": hold_ms,
            "subscription": "*",
            "subVersion": 0,
        }
        header.update(fields)
        return Command(code=RequestCode.PULL_MESSAGE, ext=headers.texts(**header))

    def pull(self, topic: str, queue_id: int = 0, offset: int = 0, **fields: Any) -> Pulled:
        connection = fields.pop("connection", None)
        answer = self.ask(self.pull_command(topic, queue_id, offset, **fields), connection)
        return Pulled(answer, records_in(bytes(answer.body)))

    def read_queue(self, topic: str, queue_id: int = 0) -> list[Record]:
        """Return every record of a queue, pulled to its end."""
        records: list[Record] = []
        offset = 0
        while True:
            pulled = self.pull(topic, queue_id, offset)
            if pulled.answer.code == ResponseCode.TOPIC_NOT_EXIST:
                return records
            if pulled.answer.code == ResponseCode.PULL_NOT_FOUND:
                return records
            assert pulled.answer.code in (
                ResponseCode.SUCCESS,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
                ResponseCode.PULL_OFFSET_MOVED,
            ), pulled.answer
            records += pulled.records
            assert pulled.next_offset > offset, pulled.answer
            offset = pulled.next_offset

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        return [record.message.body for record in self.read_queue(topic, queue_id)]


def records_in(body: bytes) -> list[Record]:
    records = []
    at = 0
    while at < len(body):
        record = decode_record(body, at)
        records.append(record)
        at += record.size
    return records
