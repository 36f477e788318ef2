"""Requests that are held: long polls, and requests whose answer another part gives before a deadline.

An event of a key costs only as much as the requests that it concerns. The tags of new messages find pulls by tags, and
one evaluation per expression the others. Requests whose connection does not read are set aside.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol, TypeVar

from wheelmq.broker.answers import Deferred, PeerError
from wheelmq.broker.arrivals import Matches, is_of_a_tag
from wheelmq.broker.connection import Connection
from wheelmq.broker.request import Request
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.system.clock import Clock

DEADLINES_OVER: Final = 64
"""The heap is rebuilt once it has more deadlines than twice the held requests plus this number."""
HOLDS_MAX: Final = 250_000
"""Maximum held requests. A pull by tags counts once more for each tag, because it takes an entry for each."""
HOLDS_OF_ONE_MAX: Final = 20_000
"""The same limit for one connection."""


WOKEN_MAX: Final = 256
"""Maximum requests that are checked, dropped or answered late between two ticks: 5 ms of work."""

WOKEN_OF_KEY_MAX: Final = 32
"""Maximum requests of one key before those of the next key. A pull of a quiet queue does not wait for 200,000 pulls
of another queue."""

_TOO_MANY_HELD: Final = (
    f"too many held requests: at most {HOLDS_OF_ONE_MAX} per connection and {HOLDS_MAX} in total. A pull by tags "
    "counts for each tag too. Try again later"
)

Attempt = Callable[[bool], Command | None]
"""Returns the answer of a held request, or None to wait further; at the last call, with True, None is no answer."""


@dataclass(slots=True)
class Wants:
    """The messages of a queue that a held pull wants, by tag codes or else by properties."""

    codes: frozenset[int] | None
    matches: Matches | None
    go_to: Callable[[int | None], None]
    """Called before the attempt, with the queue offset of the first message that the pull may want. None: it wants
    none of the messages that the queue got since it was held."""


class News(Protocol):
    """The messages that have come to a queue."""

    def first_by_code(self) -> Mapping[int, int]:
        """Return the first queue offset of each tag code."""
        ...

    def first_that(self, matches: Matches) -> int | None:
        """Return the queue offset of the first message that passes."""
        ...


class _Held:
    __slots__ = ("answer", "attempt", "connection", "deadline_ms", "is_passed_over", "key", "wants")

    def __init__(
        self,
        connection: Connection,
        key: object,
        deadline_ms: int,
        attempt: Attempt,
        wants: Wants | None,
        answer: Deferred,
    ) -> None:
        self.connection = connection
        self.key = key
        self.deadline_ms = deadline_ms
        self.attempt = attempt
        self.wants = wants
        self.answer = answer
        self.is_passed_over = False
        """Whether it was not checked because its connection was full. It is checked once that has drained."""


class _Waiting:
    """The requests that wait for one key, by serial.

    `all` has each of them. The other tables have those that are not passed over, by the messages that they want.
    """

    __slots__ = ("all", "by_code", "by_filter", "by_tags", "for_anything")

    def __init__(self) -> None:
        self.all: dict[int, _Held] = {}
        self.for_anything: dict[int, None] = {}
        self.by_tags: dict[int, None] = {}
        self.by_code: dict[int, dict[int, None]] = {}
        self.by_filter: dict[Matches, dict[int, None]] = {}

    def add(self, serial: int, held: _Held) -> None:
        self.all[serial] = held
        self.list(serial, held)

    def remove(self, serial: int) -> None:
        held = self.all.pop(serial)
        if not held.is_passed_over:
            self.strike(serial, held)

    def list(self, serial: int, held: _Held) -> None:
        """Add the request to the tables by which messages find it."""
        match held.wants:
            case Wants(codes=frozenset() as codes):
                self.by_tags[serial] = None
                for code in codes:
                    self.by_code.setdefault(code, {})[serial] = None
            case Wants(matches=matches) if matches is not None:
                self.by_filter.setdefault(matches, {})[serial] = None
            case _:
                self.for_anything[serial] = None

    def strike(self, serial: int, held: _Held) -> None:
        """Remove the request from the tables by which messages find it."""
        match held.wants:
            case Wants(codes=frozenset() as codes):
                del self.by_tags[serial]
                for code in codes:
                    _take_out(self.by_code, code, serial)
            case Wants(matches=matches) if matches is not None:
                _take_out(self.by_filter, matches, serial)
            case _:
                del self.for_anything[serial]

    def wanting(self, news: News) -> dict[int, int]:
        """Return the requests that wait for the new messages, each with the first queue offset that it may want."""
        found: dict[int, int] = {}
        for code, offset in news.first_by_code().items() if self.by_tags else ():
            for serial in self.by_code.get(code, ()) if is_of_a_tag(code) else self.by_tags:
                found[serial] = min(offset, found.get(serial, offset))
        for matches, serials in self.by_filter.items():
            first = news.first_that(matches)
            if first is not None:
                found.update(dict.fromkeys(serials, first))
        return found


def _weight(wants: Wants | None) -> int:
    return 1 if wants is None else 1 + len(wants.codes or ())


K = TypeVar("K")
V = TypeVar("V")


def _take_out(table: dict[K, dict[int, V]], key: K, serial: int) -> None:
    mine = table[key]
    del mine[serial]
    if not mine:
        del table[key]


class Holds:
    """Held requests by key and by deadline (monotonic milliseconds)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_key: dict[object, _Waiting] = {}
        self._by_connection: dict[int, dict[int, _Held]] = {}
        self._deadlines: list[tuple[int, int, object]] = []
        """A heap. The deadline of an answered request may stay in it for a while."""
        self._passed: dict[int, dict[int, _Held]] = {}
        """Requests that were passed over because their connection was full, by connection and serial."""
        self._woken: dict[object, dict[int, int | None]] = {}
        """Requests to check again, by key and serial, with the queue offset of the first message that they may want."""
        self._woken_since: set[object] = set()
        """Keys that were woken again while many of their requests wait to be checked."""
        self._gone: deque[dict[int, _Held]] = deque()
        """Requests of connections that are gone."""
        self._has_drained = False
        """Whether the next tick checks more requests that were passed over."""
        self._checked = 0
        """Woken requests checked since the last tick."""
        self._serial = 0
        self._count = self._weight = 0
        self._weights: Counter[int] = Counter()
        """By connection."""

    def __len__(self) -> int:
        return self._count

    def wait(
        self, request: Request, key: object, timeout_ms: int, attempt: Attempt, wants: Wants | None = None
    ) -> Deferred:
        """Hold a request until `attempt` returns its answer, at an event of `key` or at the deadline.

        `wants` filters the events of a queue; None wants every message. A oneway request and a request of a closed
        connection get no answer. Raises PeerError if there is no room.
        """
        held = _Held(request.connection, key, self._clock.monotonic_ms() + timeout_ms, attempt, wants, Deferred())
        self._hold(held, is_oneway=request.command.is_oneway)
        return held.answer

    def with_deadline(
        self, request: Request, answer: Deferred, timeout_ms: int, on_deadline: Callable[[], Command]
    ) -> Deferred:
        """Hold a request until another part gives `answer`, or until the deadline, for the answer of `on_deadline`.

        Otherwise it is like `wait`. If the request ends without `answer`, this ends `answer` too.
        """
        if answer.is_over:
            return answer
        key = object()

        def attempt(last: bool) -> Command | None:
            given = answer.given
            if isinstance(given, Exception):
                raise given
            assert not isinstance(given, Deferred), "a worker or a slice gives its answer itself"
            return on_deadline() if given is None and last else given

        held = self.wait(request, key, timeout_ms, attempt)
        held.when_given(lambda _: answer.give(None))
        answer.when_given(lambda _: self.wake(key))
        return held

    def _hold(self, held: _Held, *, is_oneway: bool) -> None:
        """Hold a request under the next serial, or end it. Raises PeerError."""
        peer, weight = id(held.connection), _weight(held.wants)
        if self._weight + weight > HOLDS_MAX or self._weights[peer] + weight > HOLDS_OF_ONE_MAX:
            raise PeerError(ResponseCode.SYSTEM_BUSY, _TOO_MANY_HELD)
        if is_oneway or not held.connection.is_open:  # `drop` may have run already
            held.answer.give(None)
            return
        held.answer.accept()
        self._serial += 1
        self._count += 1
        self._weight += weight
        self._weights[peer] += weight
        waiting = self._by_key.get(held.key)
        if waiting is None:
            waiting = self._by_key[held.key] = _Waiting()
        waiting.add(self._serial, held)
        self._by_connection.setdefault(peer, {})[self._serial] = held
        heapq.heappush(self._deadlines, (held.deadline_ms, self._serial, held.key))

    def has(self, key: object) -> bool:
        return key in self._by_key

    def wake(self, key: object, news: Callable[[], News] | None = None) -> None:
        """Check again each request that waits for `key`: a few at once, the others in later ticks.

        `news` returns the new messages of a queue. A filtered request is checked only if it may want one of them.
        """
        waiting = self._by_key.get(key)
        if waiting is None:
            return
        batch = self._woken.setdefault(key, {})
        if news is None:
            for serial in waiting.all:
                batch.setdefault(serial, None)
        else:
            if len(batch) > WOKEN_MAX:
                self._woken_since.add(key)
            else:
                batch.update(dict.fromkeys(waiting.for_anything))
            wanting = waiting.wanting(news()) if waiting.by_tags or waiting.by_filter else {}
            for serial, offset in wanting.items():
                batch.setdefault(serial, offset)  # a request that is listed already wants an earlier message
        self._check_woken()

    def _check_woken(self) -> None:
        while self._woken and self._checked < WOKEN_MAX:
            key = next(iter(self._woken))
            batch = self._woken.pop(key)
            waiting = self._by_key.get(key)
            for serial in list(islice(batch, WOKEN_OF_KEY_MAX)):
                self._checked += 1
                offset = batch.pop(serial)
                held = None if waiting is None else waiting.all.get(serial)
                if held is not None:
                    if offset is not None:
                        self._go_to(held, offset)
                    self._again(serial, held, last=False)
            if not batch and key in self._woken_since:
                self._woken_since.discard(key)
                batch = {} if waiting is None else dict.fromkeys(waiting.for_anything)
            if batch:
                self._woken[key] = batch  # after the other keys

    def has_more(self) -> bool:
        return bool(self._woken or self._gone or self._has_drained)

    def expire(self, now_ms: int) -> None:
        """Continue the work that earlier ticks left, and answer the requests past their deadline.

        Requests that were passed over are checked once more when their connection has drained.
        """
        self._checked = 0
        self._drop_gone()
        self._check_woken()
        drained = [passed for passed in self._passed.values() if not next(iter(passed.values())).connection.is_full]
        self._has_drained = any(len(passed) > WOKEN_MAX for passed in drained)
        for passed in drained:
            for serial, held in list(islice(passed.items(), WOKEN_MAX)):
                self._again(serial, held, last=False)
        late_max = WOKEN_MAX
        while self._deadlines and self._deadlines[0][0] <= now_ms and late_max:
            _, serial, key = heapq.heappop(self._deadlines)
            waiting = self._by_key.get(key)
            late = None if waiting is None else waiting.all.get(serial)
            if late is not None and late.connection.is_open:
                late_max -= 1
                if serial not in self._woken.get(key, ()):
                    self._go_to(late, None)
                self._again(serial, late, last=True)

    def _go_to(self, held: _Held, offset: int | None) -> None:
        """Set the queue offset at which a request with a filter continues, unless it was passed over."""
        if held.wants is not None and not held.is_passed_over:
            held.wants.go_to(offset)

    def next_deadline_ms(self) -> int | None:
        return self._deadlines[0][0] if self._deadlines else None

    def drop(self, connection: Connection) -> None:
        """Drop the requests of a connection that is gone: a few now, the others in later ticks."""
        mine = self._by_connection.get(id(connection))
        if mine:
            self._gone.append(mine)
            self._drop_gone()

    def _drop_gone(self) -> None:
        left = WOKEN_MAX
        while self._gone and left:
            mine = self._gone[0]
            for serial, held in list(islice(mine.items(), left)):
                left -= 1
                self._forget(serial, held)
                held.answer.give(None)
            if not mine:
                self._gone.popleft()

    def _again(self, serial: int, held: _Held, *, last: bool) -> None:
        if not held.connection.is_open:
            return  # it is about to be dropped
        if held.connection.is_full and not last:
            self._pass_over(serial, held)
            return
        try:
            answer = held.attempt(last)
        except Exception as error:
            self._forget(serial, held)
            held.answer.fail(error)
            return
        if answer is not None or last:
            self._forget(serial, held)
            held.answer.give(answer)
        elif held.is_passed_over:
            self._end_passing(serial, held)
            self._by_key[held.key].list(serial, held)

    def _pass_over(self, serial: int, held: _Held) -> None:
        if not held.is_passed_over:
            held.is_passed_over = True
            self._by_key[held.key].strike(serial, held)
            self._passed.setdefault(id(held.connection), {})[serial] = held

    def _end_passing(self, serial: int, held: _Held) -> None:
        held.is_passed_over = False
        _take_out(self._passed, id(held.connection), serial)

    def _forget(self, serial: int, held: _Held) -> None:
        waiting = self._by_key[held.key]
        waiting.remove(serial)
        if not waiting.all:
            del self._by_key[held.key]
        if held.is_passed_over:
            self._end_passing(serial, held)
        peer, weight = id(held.connection), _weight(held.wants)
        _take_out(self._by_connection, peer, serial)
        self._count -= 1
        self._weight -= weight
        self._weights[peer] -= weight
        if not self._weights[peer]:
            del self._weights[peer]
        if len(self._deadlines) > 2 * self._count + DEADLINES_OVER:
            self._deadlines = [
                (one.deadline_ms, serial, key)
                for key, waiting in self._by_key.items()
                for serial, one in waiting.all.items()
            ]
            heapq.heapify(self._deadlines)
