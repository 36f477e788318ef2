"""Clock steps of an hour in both directions, on a broker with real sockets, threads and files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from wheelmq.broker import app as broker_app
from wheelmq.broker.app import BrokerApp
from wheelmq.broker.settings import BrokerSettings
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import decode_record
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.formats.wire.frame import Command
from wheelmq.net.rpc_client import RpcClient
from wheelmq.system.clock import SystemClock
from wheelmq.testing.harness import SMALL

HOUR_MS: Final = 3_600_000
PROMPT_MS: Final = 1500
"""Longest delay of a release after a step of the clock, on a machine that runs other programs, too."""
DEADLINE_S: Final = 20.0

SETTINGS: Final = {
    **SMALL,
    "timer_slots": 4 * 3600,
    "timer_roll_window_slots": 7200,
    "block_length_seconds": 60,
    "message_index_enable": False,
    "message_delay_level": "1s 30m",
    "listen_port": 0,
}
NEAR: Final = {
    b"timer": {props.TIMER_DELAY_MS: "1000"},
    b"block": {props.DELAY_IN_SECONDS: "1"},
    b"level": {props.DELAY: "1"},
}
FAR: Final = {
    b"far timer": {props.TIMER_DELAY_SEC: "1800"},
    b"far block": {props.DELAY_IN_SECONDS: "1800"},
    b"far level": {props.DELAY: "2"},
}


class SteppingClock(SystemClock):
    """The machine's clock, moved by the steps of the test."""

    off_ms = 0

    def now_ms(self) -> Millis:
        return Millis(super().now_ms() + SteppingClock.off_ms)


class Watch:
    """The messages of queue 0 of T, with the wall time at which the test saw each."""

    def __init__(self, app: BrokerApp) -> None:
        assert app.broker is not None
        self._broker = app.broker
        self.seen: list[tuple[bytes, int]] = []

    def collect(self) -> list[bytes]:
        """Collect the new messages. Returns the bodies of all messages in their order."""
        queue = self._broker.parts.store.queues.find("T", 0)
        if queue is not None:
            for offset in range(len(self.seen), queue.end):
                unit = queue.read(offset, 1)[0]  # type: ignore[arg-type]
                raw = self._broker.parts.store.log.read(LogPosition(int(unit["position"])), int(unit["size"]))
                self.seen.append((decode_record(raw).message.body, self._broker.parts.clock.now_ms()))
        return [body for body, _ in self.seen]

    async def until(self, condition: Callable[[list[bytes]], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition(self.collect()):
                await asyncio.sleep(0.005)

    async def pass_ms(self, ms: int) -> None:
        """Collect messages for `ms` milliseconds."""
        stop_s = self._broker.parts.clock.monotonic() + ms / 1000
        await self.until(lambda _: self._broker.parts.clock.monotonic() >= stop_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[SteppingClock]:
    monkeypatch.setattr(broker_app, "SystemClock", SteppingClock)
    monkeypatch.setattr(SteppingClock, "off_ms", 0)
    return SteppingClock


async def send(caller: RpcClient, clock: type[SteppingClock], sent: dict[bytes, dict[str, str]]) -> dict[bytes, int]:
    """Send messages. Returns the earliest release time of each."""
    due_ms: dict[bytes, int] = {}
    for body, properties in sent.items():
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        fields = {"a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": text}
        [delay] = properties.values()
        delay_ms = {"1": 1000, "2": 1_800_000}[delay] if props.DELAY in properties else int(delay)
        delay_ms *= 1000 if {props.TIMER_DELAY_SEC, props.DELAY_IN_SECONDS} & properties.keys() else 1
        due_ms[body] = clock().now_ms() + delay_ms
        assert (await caller.call(Command(code=310, ext=fields, body=body), DEADLINE_S)).code == 0
    return due_ms


def test_clock_steps_of_an_hour_release_each_message_once(tmp_path: Path, clock: type[SteppingClock]) -> None:
    """No message is early by the wall clock, lost or released twice.

    Levels follow Apache's rule: a message whose due time is further away than its level leaves at once.
    """

    async def play(app: BrokerApp, caller: RpcClient) -> None:
        watch = Watch(app)
        due_ms = await send(caller, clock, NEAR)
        clock.off_ms -= HOUR_MS
        await watch.until(lambda bodies: bodies == [b"level"])
        await watch.pass_ms(1500)
        assert watch.collect() == [b"level"], "they are due in an hour"
        clock.off_ms += HOUR_MS
        await watch.until(lambda bodies: len(bodies) == len(NEAR))
        due_ms |= await send(caller, clock, FAR)
        await watch.pass_ms(200)
        assert len(watch.collect()) == len(NEAR)
        clock.off_ms += HOUR_MS
        began_s = clock().monotonic()
        await watch.until(lambda bodies: len(bodies) == len(NEAR) + len(FAR))
        assert clock().monotonic() - began_s < PROMPT_MS / 1000
        clock.off_ms -= HOUR_MS
        again = {b"again " + body: properties for body, properties in NEAR.items()}
        due_ms |= await send(caller, clock, again)
        await watch.until(lambda bodies: len(bodies) == len(due_ms))
        for body, seen_ms in watch.seen:
            assert seen_ms >= due_ms[body] or body == b"level"
            assert seen_ms < due_ms[body] + PROMPT_MS or body not in again
        await watch.pass_ms(300)
        assert sorted(watch.collect()) == sorted(due_ms)

    async def played() -> None:
        app = BrokerApp(BrokerSettings.of(store_path=tmp_path, **SETTINGS), owns_process=False)
        await app.start()
        caller = RpcClient(f"127.0.0.1:{app.settings.broker.listen_port}")
        try:
            await play(app, caller)
        finally:
            await caller.close()
            await app.stop()

    asyncio.run(played())
