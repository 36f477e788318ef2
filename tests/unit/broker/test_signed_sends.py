"""Signed sends and the kernel: it serves those that passed the check, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.broker.sample_requests import ROOT, TOPIC
from tests.unit.broker.test_access import BOB, add, ask, grant, stored
from wheelmq.auth.needs import Right
from wheelmq.auth.policies import Action, Resource
from wheelmq.auth.users import UserKind
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import SIGNATURE, AccessKey
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import BrokerHarness

pytestmark = pytest.mark.kernels

MANY = 50


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[BrokerHarness]:
    with BrokerHarness(tmp_path / "store", authentication_enabled=True, authorization_enabled=True) as harness:
        add(harness, ROOT, UserKind.SUPER)
        add(harness, BOB)
        assert ask(harness, harness.send_command(TOPIC, b"first"), ROOT).code == 0
        grant(harness, BOB, Right(Resource.parse(f"Topic:{TOPIC}"), frozenset({Action.PUB})))
        yield harness


def feed(harness: BrokerHarness, commands: list[Command], peer: FakeConnection, *, binary: bool = False) -> None:
    """Receive all requests at once."""
    raw = b""
    for command in commands:
        command.opaque = peer.next_opaque()
        raw += frame.encode_binary(command) if binary else frame.encode(command)
    harness.feed(raw, peer)
    harness.tick()


def sends(harness: BrokerHarness, key: AccessKey | None, count: int = MANY, topic: str = TOPIC) -> list[Command]:
    found = [harness.send_command(topic, b"%d" % i, properties={"UNIQ_KEY": f"K{i}"}) for i in range(count)]
    for command in found if key is not None else ():
        key.sign(command)  # type: ignore[union-attr]
    return found


def served(harness: BrokerHarness) -> int:
    fast = harness.broker.parts.fast_send
    assert fast is not None
    return fast.served


@pytest.mark.parametrize("binary", [False, True])
def test_the_kernel_serves_signed_sends(secured: BrokerHarness, binary: bool) -> None:
    before, peer = served(secured), secured.connect()
    feed(secured, sends(secured, BOB), peer, binary=binary)
    assert served(secured) == before + MANY
    assert [answer.code for answer in peer.answers.values()] == [0] * MANY
    assert [record.message.body for record in stored(secured, TOPIC)[1:]] == [b"%d" % i for i in range(MANY)]


@pytest.mark.parametrize(
    ("key", "topic"), [(None, TOPIC), (AccessKey("bob", "guessed"), TOPIC), (BOB, "BenchmarkTest"), (BOB, "Other")]
)
def test_the_kernel_serves_no_send_without_signature_and_right(
    secured: BrokerHarness, key: AccessKey | None, topic: str
) -> None:
    before, end, peer = served(secured), secured.broker.parts.store.log.end, secured.connect()
    feed(secured, sends(secured, key, topic=topic), peer)
    assert served(secured) == before and secured.broker.parts.store.log.end == end
    assert {answer.code for answer in peer.answers.values()} == {ResponseCode.NO_PERMISSION}
    assert len(peer.answers) == MANY


def test_a_wrong_send_among_right_ones_is_the_only_rejected_one(secured: BrokerHarness) -> None:
    commands = sends(secured, BOB)
    commands[7].ext[SIGNATURE] = commands[8].ext[SIGNATURE]
    commands[20].body = b"changed"
    peer = secured.connect()
    feed(secured, commands, peer)
    codes = [answer.code for _, answer in sorted(peer.answers.items())]
    assert [i for i, code in enumerate(codes) if code] == [7, 20] and codes[7] == codes[20] == 16
    bodies = [record.message.body for record in stored(secured, TOPIC)[1:]]
    assert bodies == [b"%d" % i for i in range(MANY) if i not in (7, 20)]


def test_a_right_that_ends_between_two_sends_of_one_read_ends_there(secured: BrokerHarness) -> None:
    first, last = sends(secured, BOB, 5), sends(secured, BOB, 5)
    remove = Command(code=RequestCode.AUTH_DELETE_USER, ext={"username": "bob"})
    ROOT.sign(remove)
    peer = secured.connect()
    feed(secured, [*first, remove, *last], peer)
    secured.advance(1100)
    codes = [answer.code for _, answer in sorted(peer.answers.items())]
    assert codes == [0] * 6 + [16] * 5


def test_sends_that_the_kernel_leaves_cost_one_check_more_each(
    secured: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the memory of the checked frames, a read of n sends would cost n * n checks."""
    checks = 0
    access = secured.broker.parts.access
    admit = access.gate.admit

    def counted(command: Command, caller: FakeConnection) -> object:
        nonlocal checks
        checks += 1
        return admit(command, caller)

    monkeypatch.setattr(access.gate, "admit", counted)
    commands = [secured.send_command(TOPIC, b"x", properties={"DELAY": "3"}) for _ in range(MANY)]
    for command in commands:
        BOB.sign(command)
    peer = secured.connect()
    feed(secured, commands, peer)
    assert [answer.code for answer in peer.answers.values()] == [0] * MANY
    assert checks <= 2 * MANY


def test_without_authentication_nothing_is_checked_before_the_kernel(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path / "store") as harness:
        fast = harness.broker.parts.fast_send
        assert fast is not None and fast._signed_sends is None
        harness.send(TOPIC)
        peer = harness.connect()
        feed(harness, sends(harness, None), peer)
        assert served(harness) >= MANY
