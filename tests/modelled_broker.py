"""A model of the broker's side of turns: it gives leases and plans, takes uploads, and checks what a commit names.

All models of a process share the terms and the plan of one real broker, so tasks read a real store. A model has no
store of its own, and costs little. `serve` gives it a socket; a test may also call `answer` alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import Any, Final, Protocol

import msgspec

from wheelmq.delay.timer.turns import LEASE_MS
from wheelmq.formats.disk.turn_row import TURN_ROW
from wheelmq.formats.wire import frame, headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command

PACE_S: Final = 1.0
"""The pace of turns, as in the broker."""
LOOK_S: Final = 0.05
READ_BYTES: Final = 1 << 18

_epochs: Final = itertools.count(1 << 20, 1 << 20)


class Answering(Protocol):
    async def answer(self, command: Command) -> Command: ...


class ModelledBroker:
    """`plan` is the plan of each turn, with another epoch and turn number. Without a plan, no turn is due."""

    def __init__(self, terms: dict[str, Any], plan: dict[str, Any] | None, pace_s: float = PACE_S) -> None:
        self.terms = terms
        self.template = plan
        self.pace_s = pace_s
        self.turn = 0
        self.epoch = next(_epochs)
        self.committed_s: list[float] = []
        """Times of the commits."""
        self.delay_s = 0.0
        """Delay of each answer but those to OPEN and RENEW."""
        self.is_silent = False
        """Whether it answers no request at all."""
        self.rejects_commits = False
        self.opened = 0
        self.token = ""
        self._holder = ""
        self._renewed_s = self._progress_s = 0.0
        self._planned_s = 0.0
        self._plan: dict[str, Any] | None = None
        self._uploads: dict[tuple[str, int, int], int] = {}
        """Number of rows by kind, part and attempt."""

    def lose_lease(self) -> None:
        """End the lease, as a restart does."""
        self.epoch += 1
        self.token, self._plan, self._holder = "", None, ""

    async def answer(self, command: Command) -> Command:
        while self.is_silent:
            await asyncio.sleep(LOOK_S)
        ext = command.ext
        if command.code == RequestCode.WMQ_PIPELINE_OPEN:
            return self._open(ext["holderId"])
        if int(ext.get("epoch", -1)) != self.epoch or ext.get("token") != self.token:
            return _reply(ResponseCode.INVALID_PARAMETER, f"STALE: epoch {ext.get('epoch')} is over")
        self._renewed_s = time.monotonic()
        if command.code == RequestCode.WMQ_PIPELINE_RENEW:
            return _reply(quietMs=int((time.monotonic() - self._progress_s) * 1000))
        self._progress_s = time.monotonic()
        if command.code == RequestCode.WMQ_PIPELINE_PLAN:
            return await self._next_plan(int(ext["timeoutMs"]) / 1000.0)
        await asyncio.sleep(self.delay_s)
        if self._plan is None or int(ext["turn"]) != self._plan["turn"]:
            return _reply(ResponseCode.INVALID_PARAMETER, f"STALE: turn {ext['turn']} is not the running turn")
        if command.code == RequestCode.WMQ_PIPELINE_UPLOAD:
            key = (ext["kind"], int(ext["part"]), int(ext["attempt"]))
            self._uploads[key] = self._uploads.get(key, 0) + len(command.body) // TURN_ROW.itemsize
            return _reply()
        return self._commit(msgspec.json.decode(command.body))

    def _open(self, holder: str) -> Command:
        now_s = time.monotonic()
        if self._holder and holder != self._holder and now_s - self._renewed_s < LEASE_MS / 1000.0:
            return _reply(ResponseCode.NO_PERMISSION, "LEASE_HELD: another pipeline holds the lease")
        self.lose_lease()
        self.opened += 1
        self._holder, self.token = holder, f"secret{self.epoch}"
        self._renewed_s = self._progress_s = now_s
        self._planned_s = 0.0
        return _reply(body=msgspec.json.encode({**self.terms, "epoch": self.epoch, "token": self.token}))

    async def _next_plan(self, timeout_s: float) -> Command:
        epoch, ends_s = self.epoch, time.monotonic() + timeout_s
        while self._plan is None:
            now_s = time.monotonic()
            if self.template is not None and now_s - self._planned_s >= self.pace_s:
                self._plan = {**self.template, "epoch": epoch, "turn": self.turn + 1}
                self._planned_s = now_s
                self._uploads.clear()
                break
            if now_s >= ends_s or epoch != self.epoch:
                return _reply(ResponseCode.PULL_NOT_FOUND, "there is no work for a turn")
            due_s = self._planned_s + self.pace_s if self.template is not None else ends_s
            await asyncio.sleep(max(0.001, min(ends_s, due_s) - now_s))
        return _reply(body=msgspec.json.encode(self._plan))

    def _commit(self, winners: list[dict[str, Any]]) -> Command:
        assert self._plan is not None
        rows = sum(self._uploads.get((one["kind"], one["part"], one["attempt"]), 0) for one in winners)
        expected = self._plan["index_to"] - self._plan["index_from"] + self._plan["walk_rows"]
        if self.rejects_commits or rows != expected:
            return _reply(ResponseCode.ILLEGAL_OPERATION, f"TURN_REFUSED: {rows} rows, but the plan has {expected}")
        self.turn, self._plan = self._plan["turn"], None
        self.committed_s.append(time.monotonic())
        return _reply(turn=self.turn)


class DirectCaller:
    """Calls a model without a socket."""

    def __init__(self, broker: ModelledBroker) -> None:
        self._broker = broker

    async def call(self, command: Command, timeout_s: float = 5.0) -> Command:
        return await self._broker.answer(command)

    async def close(self) -> None:
        """Do nothing."""


async def serve(broker: Answering, port: int = 0) -> tuple[asyncio.Server, str]:
    """Serve a model on a port of this machine. Returns the server and its address."""
    tasks: set[asyncio.Task[None]] = set()

    async def respond(command: Command, writer: asyncio.StreamWriter) -> None:
        answer = await broker.answer(command)
        answer.opaque, answer.flag = command.opaque, frame.FLAG_RESPONSE
        writer.write(frame.encode(answer))

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        buffer = bytearray()
        with contextlib.suppress(OSError):
            while chunk := await reader.read(READ_BYTES):
                buffer += chunk
                while (end := frame.frame_end(buffer, 0, len(buffer))) is not None:
                    task = asyncio.ensure_future(respond(frame.decode(buffer, 0, end), writer))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                    del buffer[:end]
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", port, limit=READ_BYTES)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _reply(code: int = ResponseCode.SUCCESS, remark: str | None = None, body: bytes = b"", **fields: object) -> Command:
    return Command(code=code, remark=remark, body=body, ext=headers.texts(**fields))
