"""The network between the machines of a cluster: delays, partitions, and connections that break at any byte.

Bytes of one connection keep their order. Those of two connections may overtake each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from wheelmq.testing.clock import ManualClock

Accept = Callable[[], asyncio.Protocol]
"""Creates the protocol of a connection that a port accepts."""
Pair = frozenset[str]
"""Two machines."""


class NetworkSocket:
    """The socket of a connection, as far as code uses it."""

    def setsockopt(self, *options: object) -> None:
        """Do nothing: a simulated socket has no options."""


@dataclass
class Weather:
    """The properties of the network in one run."""

    delay_ms_max: int
    """Longest delay of bytes."""
    splits: float
    """Share of deliveries that bring only a part of the bytes."""
    buffer_bytes: int
    """Bytes under way above which a sender must wait."""


class SimulatedTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, machine: str, loop: asyncio.AbstractEventLoop, peer: str, number: int) -> None:
        super().__init__()
        self._network = network
        self.machine = machine
        self.loop = loop
        self.peer_address = peer
        self.protocol: asyncio.Protocol | None = None
        self.other: SimulatedTransport | None = None
        self.randomness = Random(number)
        self._sent: deque[tuple[int, bytes]] = deque()
        """Bytes on their way to the other end, each with the time of their arrival."""
        self._sent_bytes = 0
        self._arrives_ms = 0
        self._end: ConnectionResetError | bool = False
        """True once this end was closed after its last bytes, or the error that the other end gets."""
        self._end_is_delivered = False
        self._is_closing = False
        self._is_paused = False
        self._writer_waits = False

    # Called by protocols -------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._is_closing or self._end is not False or not len(data):
            return  # bytes after a break never arrive
        self._put(bytes(data))
        if self._sent_bytes > self._network.weather.buffer_bytes and not self._writer_waits:
            self._writer_waits = True
            assert self.protocol is not None
            self.protocol.pause_writing()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Close after the bytes that are on their way."""
        self._shut(False)

    def abort(self) -> None:
        """Close at once. Only some of the bytes on their way arrive."""
        self._shut(True)

    def _shut(self, at_once: bool) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self.end(ConnectionResetError("the peer reset the connection") if at_once else True)
        self._notify_lost(None)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            host, _, port = self.peer_address.rpartition(":")
            return host, int(port)
        return NetworkSocket() if name == "socket" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the weather sets the limit."""

    def get_write_buffer_size(self) -> int:
        return self._sent_bytes

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False

    def is_reading(self) -> bool:
        return not self._is_paused

    # Called by the network -----------------------------------------------------------------------------------------

    def open(self, protocol: asyncio.Protocol, other: SimulatedTransport) -> None:
        self.protocol, self.other = protocol, other

    def _put(self, data: bytes) -> None:
        delay_ms = self.randomness.randint(0, self._network.weather.delay_ms_max)
        self._arrives_ms = max(self._arrives_ms, self._network.now_ms() + delay_ms)
        self._sent.append((self._arrives_ms, data))
        self._sent_bytes += len(data)

    def end(self, how: ConnectionResetError | bool) -> None:
        """End this direction: after the bytes on their way, or with an error after some of them."""
        if self._end is False:
            self._end = how
            if how is not True:
                self._lose_some()

    def _lose_some(self) -> None:
        """Keep the first bytes on their way, up to any of them."""
        kept = self.randomness.choice((0, self._sent_bytes, self.randomness.randint(0, self._sent_bytes)))
        sent, self._sent, self._sent_bytes = self._sent, deque(), 0
        for at_ms, data in sent:
            part = data[: kept - self._sent_bytes]
            if part:
                self._sent.append((at_ms, part))
                self._sent_bytes += len(part)

    def vanish(self) -> None:
        """Lose all bytes on their way, without any notification, because the machine has no power."""
        self._sent.clear()
        self._sent_bytes = 0
        self._is_closing = True

    def next_ms(self) -> int | None:
        """Return when this end has something for the other end; None if it has nothing."""
        if self._sent:
            return self._sent[0][0]
        if self._end is False or self._end_is_delivered or self.other is None or self.other.is_closing():
            return None
        return 0

    def deliver(self) -> None:
        """Pass the bytes that have arrived to the other end, and then the end of the connection."""
        other = self.other
        assert other is not None and other.protocol is not None
        if other._is_paused and not other.is_closing():
            return
        arrived, now_ms = [], self._network.now_ms()
        while self._sent and self._sent[0][0] <= now_ms:
            arrived.append(self._sent.popleft()[1])
        data = b"".join(arrived)
        if len(data) > 1 and self.randomness.random() < self._network.weather.splits:
            cut = self.randomness.randint(1, len(data) - 1)
            self._sent.appendleft((now_ms + self.randomness.randint(0, 1), data[cut:]))
            data = data[:cut]
        self._sent_bytes -= len(data)
        if data and not other.is_closing():
            other.loop.call_soon(other._take, data)
        if self._writer_waits and self._sent_bytes <= self._network.weather.buffer_bytes // 2:
            self._writer_waits = False
            if not self._is_closing and self.protocol is not None:
                self.loop.call_soon(self.protocol.resume_writing)
        if not self._sent and self._end is not False and not self._end_is_delivered:
            self._end_is_delivered = True
            other.loop.call_soon(other._ended, None if self._end is True else self._end)

    def _take(self, data: bytes) -> None:
        if not self._is_closing and self.protocol is not None:
            self.protocol.data_received(data)

    def _ended(self, error: ConnectionResetError | None) -> None:
        """Note that the other end has closed the connection, and close this end too."""
        if self._is_closing:
            return
        self._is_closing = True
        self.end(True)
        self._notify_lost(error)

    def _notify_lost(self, error: ConnectionResetError | None) -> None:
        if self.protocol is not None:
            self.loop.call_soon(self.protocol.connection_lost, error)

    def process_died(self) -> None:
        """Close this end as the system does for a process that is gone: its written bytes still arrive."""
        self.end(True)
        self._is_closing = True


@dataclass
class _Dial:
    """A connection that is being opened."""

    machine: str
    loop: asyncio.AbstractEventLoop
    address: str
    protocol: asyncio.Protocol
    future: asyncio.Future[asyncio.Transport]
    due_ms: int


@dataclass
class _Port:
    machine: str
    loop: asyncio.AbstractEventLoop
    accept: Accept


class MachineNetwork:
    """The network as one process sees it: it can dial."""

    def __init__(self, network: Network, machine: str) -> None:
        self._network = network
        self._machine = machine

    def dial(self, protocol: asyncio.BaseProtocol, address: str) -> asyncio.Future[asyncio.Transport]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[asyncio.Transport] = loop.create_future()
        assert isinstance(protocol, asyncio.Protocol)
        self._network.dial(_Dial(self._machine, loop, address, protocol, future, self._network.now_ms()))
        return future


class Network:
    """All machines, their ports and connections."""

    def __init__(self, clock: ManualClock, weather: Weather, seed: int) -> None:
        self.weather = weather
        self._clock = clock
        self._seed = seed
        self._ports: dict[str, _Port] = {}
        self._ends: dict[SimulatedTransport, None] = {}
        """The client's end of each connection, in the order of their numbers."""
        self._dials: list[_Dial] = []
        self._count = 0
        self.cuts: dict[Pair, None] = {}
        """The pairs of machines that cannot reach each other."""
        self._dark: dict[str, None] = {}
        """The machines without power."""

    def now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def listen(self, address: str, machine: str, loop: asyncio.AbstractEventLoop, accept: Accept) -> None:
        self._ports[address] = _Port(machine, loop, accept)

    def dial(self, dial: _Dial) -> None:
        self._dials.append(dial)

    # Time ----------------------------------------------------------------------------------------------------------

    def next_ms(self) -> int | None:
        """Return the time of the next delivery; None if nothing is on its way."""
        times = [end.next_ms() for end in self._open_ends() if not end.other._is_paused]  # type: ignore[union-attr]
        times += [one.due_ms for one in self._dials if not self._is_blocked(one.machine, _host(one.address))]
        return min((one for one in times if one is not None), default=None)

    def deliver(self) -> None:
        """Deliver all that has arrived by now."""
        now_ms = self.now_ms()
        if self._dials:
            self._open_dialed(now_ms)
        for end in list(self._open_ends()):
            due_ms = end.next_ms()
            if due_ms is not None and due_ms <= now_ms:
                end.deliver()
        for end in [end for end in self._ends if _is_over(end)]:
            del self._ends[end]

    def _open_ends(self) -> list[SimulatedTransport]:
        """Return both ends of each connection whose bytes are not blocked."""
        found: list[SimulatedTransport] = []
        for end in self._ends:
            other = end.other
            assert other is not None
            if not self._is_blocked(end.machine, other.machine):
                found += (end, other)
        return found

    def _open_dialed(self, now_ms: int) -> None:
        waiting, self._dials = self._dials, []
        for dial in waiting:
            if dial.future.done():
                continue
            if dial.due_ms > now_ms or self._is_blocked(dial.machine, _host(dial.address)):
                self._dials.append(dial)
                continue
            port = self._ports.get(dial.address)
            if port is None:
                dial.future.set_exception(ConnectionRefusedError(f"no process listens at {dial.address}"))
            else:
                self._connect(dial, port)

    def _connect(self, dial: _Dial, port: _Port) -> None:
        self._count += 1
        number = self._seed * 1_000_003 + 2 * self._count
        client = SimulatedTransport(self, dial.machine, dial.loop, dial.address, number)
        back = f"{dial.machine}:{30_000 + self._count}"
        server = SimulatedTransport(self, port.machine, port.loop, back, number + 1)
        accepted = port.accept()
        client.open(dial.protocol, server)
        server.open(accepted, client)
        self._ends[client] = None
        port.loop.call_soon(accepted.connection_made, server)
        dial.loop.call_soon(dial.protocol.connection_made, client)
        dial.loop.call_soon(_finish, dial.future, client)

    # Faults --------------------------------------------------------------------------------------------------------

    def _is_blocked(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self.cuts or one in self._dark or other in self._dark

    def cut(self, one: str, other: str) -> None:
        """Hold all bytes between two machines back. Neither of them notices at once."""
        self.cuts[frozenset((one, other))] = None

    def heal(self, one: str, other: str, randomness: Random) -> None:
        """End a cut. A connection that has survived it continues, or breaks."""
        self.cuts.pop(frozenset((one, other)), None)
        for end in list(self._ends):
            assert end.other is not None
            if {end.machine, end.other.machine} == {one, other} and randomness.random() < 0.5:
                self._break(end)

    def break_one(self, randomness: Random) -> None:
        """Break a random connection, after any of its bytes."""
        if self._ends:
            self._break(randomness.choice(list(self._ends)))

    def _break(self, end: SimulatedTransport) -> None:
        other = end.other
        assert other is not None
        for one in (end, other):
            one.end(ConnectionResetError("the network broke the connection"))

    def process_gone(self, machine: str, *, dark: bool) -> None:
        """Close the ports and connections of a process, as its system does. Without power, nothing is notified."""
        for address in [address for address, port in self._ports.items() if port.machine == machine]:
            del self._ports[address]
        self._dials = [one for one in self._dials if one.machine != machine]
        for end in list(self._ends):
            other = end.other
            assert other is not None
            for one in (end, other):
                if one.machine == machine:
                    if dark:
                        one.vanish()
                    else:
                        one.process_died()
        if dark:
            self._dark[machine] = None

    def power_on(self, machine: str) -> None:
        """Let a machine answer again. It knows no connection of its former life."""
        self._dark.pop(machine, None)
        for end in list(self._ends):
            other = end.other
            assert other is not None
            for one in (end, other):
                if one.machine == machine:
                    one.end(ConnectionResetError("the machine started again"))


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _is_over(end: SimulatedTransport) -> bool:
    other = end.other
    return other is not None and end.is_closing() and other.is_closing()


def _finish(future: asyncio.Future[asyncio.Transport], transport: asyncio.Transport) -> None:
    if future.done():
        transport.abort()  # the caller has given up
    else:
        future.set_result(transport)
