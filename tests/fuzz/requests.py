"""Requests to a whole broker, in order on one connection.

An input is text, so that a mutation is likely a request too. A line `--` separates requests:

    code flag
    name=value
    name=value

    body

Rules: a request gets at most one answer, and a oneway request gets none. No handler raises an undeclared error. The
broker continues, and serves a valid send after each input.
"""

from __future__ import annotations

import atexit
import logging
import tempfile
from pathlib import Path

from wheelmq.broker.handlers import HANDLERS
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import FLAG_ONEWAY, Command
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import BrokerHarness

TOKENS = (
    *(str(int(code)).encode() for code in HANDLERS), b"\n", b"\n\n", b"\n--\n", b"=", b" 2\n", b"\x01", b"\x02",
    b"topic=T", b"queueId=0", b"consumerGroup=g", b"offset=", b"b=T", b"e=0", b"i=", b"m=true", b"f=4", b"f=8",
    b"TIMER_DELAY_MS\x011000\x02", b"TIMER_DELIVER_MS\x01", b"DELAY\x013\x02", b"delayInSeconds\x011\x02",
    b"TIMER_DEL_UNIQKEY\x01T+K\x02", b"UNIQ_KEY\x01K\x02", b"TRAN_MSG\x01true\x02", b"PGROUP\x01p\x02",
    b"TAGS\x01a\x02",
    b"-1", b"9223372036854775807", b"-9223372036854775808", b"2147483647", b"{", b"[", b'{"clientID":"c"}',
    b"commitLogOffset=0",
    b"commitOrRollback=8", b"epoch=1", b"turn=1", b"kind=queue", b"name=T/0", b"sysFlag=4", b"subscription=",
    b"expressionType=SQL92", b"%RETRY%g", b"%DLQ%g", b"rmq_sys_wheel_timer", b"SCHEDULE_TOPIC_XXXX",
)  # fmt: skip

REQUESTS_MAX = 20
INPUTS_OF_ONE_BROKER = 200
"""A start costs as much as many requests, so one broker serves many inputs. The error says so if an input fails only
after other inputs."""

CHANGES_SETTINGS = b"25"
"""A request with this code (UPDATE_BROKER_CONFIG) may stop all sends of the broker, so that broker ends."""


class _Raised(logging.Handler):
    """Stores the log records that have a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.records.append(record)


class _Served:
    """A broker that serves inputs, in its own folder."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="wheelmq-fuzz-")
        self.harness = BrokerHarness(Path(self._folder.name))
        self.inputs = 0

    def close(self) -> None:
        if self.harness.is_running:
            self.harness.crash()
        self._folder.cleanup()


_served: _Served | None = None


def check(data: bytes) -> None:
    """Send the requests of `data` to a broker, a new one if the last input failed."""
    global _served
    served = _served or _Served()
    _served = None
    behind = served.inputs
    changes = any(part.startswith(CHANGES_SETTINGS) for part in data.split(b"\n--\n"))
    try:
        _ask(served.harness, data, changes)
    except BaseException as error:
        served.close()
        if behind:
            _run_alone(data, changes)
            raise AssertionError(f"only behind {behind} other inputs: {error}") from error
        raise
    served.inputs += 1
    if changes or served.inputs >= INPUTS_OF_ONE_BROKER:
        served.close()
    else:
        _served = served


@atexit.register
def _close() -> None:
    if _served is not None:
        _served.close()


def _run_alone(data: bytes, changes: bool) -> None:
    """Send the input to a new broker. Raises an error if the input alone fails."""
    served = _Served()
    try:
        _ask(served.harness, data, changes)
    finally:
        served.close()


def _ask(harness: BrokerHarness, data: bytes, changes: bool) -> None:
    raised = _Raised()
    logger = logging.getLogger("wheelmq")
    logger.addHandler(raised)
    was_propagated, logger.propagate = logger.propagate, False
    peer = harness.connect()
    try:
        for part in data.split(b"\n--\n")[:REQUESTS_MAX]:
            _submit(harness, peer, part)
        harness.tick()
        harness.clock.advance(1500)
        harness.tick()
        assert not raised.records, raised.records[0].getMessage() + _text(raised.records[0])
        assert harness.broker.parts.health.failure is None
        if not changes:
            assert harness.send("GoesOn").code == ResponseCode.SUCCESS
            assert not raised.records, _text(raised.records[0])
    finally:
        logger.removeHandler(raised)
        logger.propagate = was_propagated
        harness.lose(peer)


def _text(record: logging.LogRecord) -> str:
    return "\n" + logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


def _submit(harness: BrokerHarness, peer: FakeConnection, part: bytes) -> None:
    """Submit the request in the text. An invalid text sends no request."""
    head, _, body = part.partition(b"\n\n")
    first, *lines = head.decode("utf-8", "replace").split("\n")
    words = first.split()
    if not 1 <= len(words) <= 2 or not all(word.isascii() and word.isdigit() and len(word) < 8 for word in words):
        return
    code, flag = int(words[0]), int(words[1]) & FLAG_ONEWAY if len(words) == 2 else 0
    pairs = (line.partition("=") for line in lines)
    ext = {name: value for name, equals, value in pairs if equals}
    if code == RequestCode.PULL_MESSAGE:
        ext.setdefault("suspendTimeoutMillis", "0")
    command = Command(code=code, flag=flag, ext=ext, body=body, opaque=peer.next_opaque(oneway=bool(flag)))
    if peer.is_open:
        harness.feed(frame.encode(command), peer)
