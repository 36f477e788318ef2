"""The bytes of strangers at a broker with users: signed frames on the port of clients, tickets on the HA port.

Rules: the check raises no undeclared error. Only a request with the exact content that root signed is admitted. A
signed request that is written and read again, as JSON and in binary, still has a valid signature. Without a valid
ticket, a replica gets no byte.
"""

from __future__ import annotations

import atexit
import contextlib
import tempfile
from functools import cache
from pathlib import Path

from wheelmq.auth.gate import NoRight, Unauthenticated
from wheelmq.auth.users import UserKind
from wheelmq.broker.replication.source import ReplicaRejected, ReplicaSource
from wheelmq.formats.disk.message import Host
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.bodies import BodyError
from wheelmq.formats.wire.frame import Command, FrameError
from wheelmq.formats.wire.signature import ACCESS_KEY, SIGNATURE, AccessKey, is_signed_with, signed_content
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import BrokerHarness

ROOT = AccessKey("root", "the secret of root")
"""A super user."""
BOB = AccessKey("bob", "the secret of bob")
"""A user without rights, whose secret the stranger knows."""
TOKENS = (
    b"\0\0\0\x60", b"\x01\0\0\x20", b"\0\0\0\0", b"\0\0\0\x01", b"\0\0\0\x02", b"\0\0\0\x03", b"\0\0\0\x2b", b"\xff",
    b'"code":', b"3001", b"25", b"9100", b"9101", b"9120", b'"version":', b'"extFields":{', b'"AccessKey":"root"',
    b'"AccessKey":"bob"', b'"Signature":"', b'"SecurityToken":"', b'"_UNIQUE_KEY_QUERY":"true"', b'"topic":"T"', b"=",
    b"\\ud800", b"\\u0000", b'"token":"', b'"wantsTicket":"true"', b"{", b"}",
)  # fmt: skip


@cache
def _secured() -> BrokerHarness:
    folder = tempfile.TemporaryDirectory(prefix="fuzz-access-")
    atexit.register(folder.cleanup)
    harness = BrokerHarness(Path(folder.name), authentication_enabled=True, authorization_enabled=True)
    harness.__enter__()
    atexit.register(harness.__exit__, None, None, None)
    tables = harness.broker.parts.access.tables
    for key, kind in ((ROOT, UserKind.SUPER), (BOB, UserKind.NORMAL)):
        tables.change_user(key.name, tables.users.make(key.name, key.secret, kind))
    return harness


def check(data: bytes) -> None:
    """Check the rules for `data` on both ports."""
    buffer, at = bytearray(data), 0
    with contextlib.suppress(FrameError):
        while (stop := frame.frame_end(buffer, at, len(buffer))) is not None:
            command = frame.decode(buffer, at, stop)
            _check_gate(command)
            _check_signature(command)
            at = stop
    _check_ticket(data)


def _check_gate(command: Command) -> None:
    """The content of the input is not signed by root, because no token or corpus has a signature of root."""
    gate = _secured().broker.parts.access.gate
    with contextlib.suppress(Unauthenticated, NoRight, BodyError):
        passed = gate.admit(command, FakeConnection(Host(b"\x0a\0\0\x01", 1)))
        is_of_lease = passed.user is None
        assert is_of_lease or passed.user == BOB.name, f"admitted as {passed.user}"
        assert not passed.rights, "bob has no rights"


def _check_signature(command: Command) -> None:
    secret = ROOT.secret.encode()
    ROOT.sign(command)
    assert is_signed_with(secret, command)
    content = signed_content(command)
    for encode in (frame.encode, frame.encode_binary) if _fits_binary(command) else (frame.encode,):
        raw = encode(command)
        assert is_signed_with(secret, frame.decode(raw, 0, len(raw))), encode.__name__
    for name in (ACCESS_KEY, *list(command.ext)[:3]):
        if name != SIGNATURE:
            changed = Command(code=command.code, version=command.version, ext=dict(command.ext), body=command.body)
            changed.ext[name] += "x"
            assert signed_content(changed) == content or not is_signed_with(secret, changed), name


def _fits_binary(command: Command) -> bool:
    has_small_numbers = all(-(1 << 15) <= number < 1 << 15 for number in (command.code, command.version))
    has_short_names = all(len(name.encode()) < 1 << 15 for name in command.ext)
    return has_small_numbers and has_short_names and command.language in frame.LANGUAGES


def _check_ticket(data: bytes) -> None:
    parts = _secured().broker.parts
    tickets = parts.replicas.tickets
    assert tickets is not None
    for step in (1, 7, len(data) or 1):
        source = ReplicaSource(parts.store.log, parts.epochs, 0, 1 << 18, tickets.redeem)
        with contextlib.suppress(ReplicaRejected):
            for at in range(0, len(data), step):
                source.receive(data[at : at + step], 0)
            source.poll(1 << 40)
        assert not source.greeting() and not list(source.frames(1 << 20, parts.store.log.end))
        assert not source.is_transferring
