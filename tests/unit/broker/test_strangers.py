"""Forged requests of a client without a signature and of a user without rights: none of them changes anything."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest

from tests.unit.broker.sample_requests import ROOT, sample
from tests.unit.broker.test_access import add, ask, ask_for_blocks, state_of, stored
from wheelmq.auth.rules import RULES
from wheelmq.auth.users import UserKind
from wheelmq.broker.handlers import HANDLERS
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.turn_row import TURN_ROW
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.block_replication import BLOCK_PLACE, BLOCK_PROGRESS, BlockPlace, pack_all
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

BOB = AccessKey("bob", "the secret of bob")
RANDOM_REQUESTS = 3000
NASTY = ("", "0", "-1", "9223372036854775807", "1e400", "\x00", "../../../evil/0", "%RETRY%g", "T", "*", "true")


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[BrokerHarness]:
    with BrokerHarness(tmp_path / "store", authentication_enabled=True, authorization_enabled=True) as harness:
        add(harness, ROOT, UserKind.SUPER)
        add(harness, BOB)
        assert ask(harness, harness.send_command("T"), ROOT).code == 0
        yield harness


@pytest.fixture(params=[None, BOB, AccessKey("root", "guessed secret")], ids=["unsigned", "unprivileged", "wrong"])
def stranger(request: pytest.FixtureRequest) -> AccessKey | None:
    key: AccessKey | None = request.param
    return key


def rejected(harness: BrokerHarness, command: Command, key: AccessKey | None) -> None:
    answer = ask(harness, command, key)
    assert answer.code == ResponseCode.NO_PERMISSION and not answer.body, (command.code, answer)


def rows(**fields: int) -> bytes:
    """Return turn rows that name a message at a forged place."""
    found = np.zeros(1, TURN_ROW)
    found["origin"], found["size"], found["magic"] = 0x3000000000000000, 200, 1
    for name, value in fields.items():
        found[name] = value
    return found.tobytes()


@pytest.mark.parametrize(
    "fields",
    [{"position": 1 << 40}, {"position": -4096}, {"origin": 0x7000000000000000}, {"fire_ms": 1 << 60}, {"magic": 4}],
    ids=lambda fields: next(iter(fields)),
)
@pytest.mark.parametrize("kind", ["index", "walk"])
def test_forged_rows_of_a_pipeline(
    secured: BrokerHarness, stranger: AccessKey | None, fields: dict[str, int], kind: str
) -> None:
    model = PipelineModel(secured)
    model.open()
    sent = secured.send_command("T", b"timer", delay_ms=4000)
    assert ask(secured, sent, ROOT).code == 0
    secured.advance(1000)
    plan = model.plan()
    assert plan is not None
    raw = rows(**fields)
    place = {"epoch": plan.epoch, "turn": plan.turn, "kind": kind, "part": 0, "attempt": 0, "chunk": 0}
    winner = {"kind": kind, "part": 0, "attempt": 0, "chunks": 1, "rows": 1, "crc": zlib.crc32(raw)}
    for token in ("", "x" * 43):
        ext = headers.texts(**place, token=token)
        rejected(secured, Command(code=RequestCode.WMQ_PIPELINE_UPLOAD, ext=dict(ext), body=raw), stranger)
        body = json.dumps([winner]).encode()
        rejected(secured, Command(code=RequestCode.WMQ_PIPELINE_COMMIT, ext=dict(ext), body=body), stranger)
    for _ in range(20):
        model.work()
        secured.advance(500)
    released = [record.message.body for record in stored(secured, "T")]
    assert released.count(b"timer") == 1


@pytest.mark.parametrize("name", ["T/0", "evil/0", "../../../evil/0", "x", "\x00"])
def test_a_read_of_the_files_of_the_store(secured: BrokerHarness, stranger: AccessKey | None, name: str) -> None:
    PipelineModel(secured).open()
    epoch = str(secured.broker.parts.timer.turns.epoch)
    ranges = msgspec.json.encode([{"kind": "queue", "name": name, "ranges": [[0, 20]]}])
    ext = {"epoch": epoch, "turn": "1", "kind": "queue", "name": name, "token": "x" * 43}
    rejected(secured, Command(code=RequestCode.WMQ_PIPELINE_READ, ext=ext, body=ranges), stranger)


def test_the_lease_under_the_name_of_its_holder(secured: BrokerHarness, stranger: AccessKey | None) -> None:
    model = PipelineModel(secured)
    model.open()
    turns = secured.broker.parts.timer.turns
    holder, epoch = turns._holder, turns.epoch
    assert holder is not None
    ext = {"name": holder.name, "holderId": holder.id}
    rejected(secured, Command(code=RequestCode.WMQ_PIPELINE_OPEN, ext=ext), stranger)
    assert (turns._holder, turns.epoch) == (holder, epoch)


@pytest.mark.parametrize(
    "line", ["waitTimeMillsInAdminBrokerQueue=0", "timerStopDequeue=true", "authenticationEnabled=false"]
)
def test_a_change_of_settings(secured: BrokerHarness, stranger: AccessKey | None, line: str) -> None:
    before = secured.broker.parts.configuration.version
    rejected(secured, Command(code=RequestCode.UPDATE_BROKER_CONFIG, body=f"{line}\n".encode()), stranger)
    assert secured.broker.parts.configuration.version == before


@pytest.mark.parametrize("setting", ["authenticationEnabled", "authorizationEnabled", "allowUnauthenticated"])
def test_not_even_a_super_user_turns_the_check_off_at_run_time(secured: BrokerHarness, setting: str) -> None:
    answer = ask(secured, Command(code=RequestCode.UPDATE_BROKER_CONFIG, body=f"{setting}=false\n".encode()), ROOT)
    assert answer.code != ResponseCode.SUCCESS
    assert ask(secured, secured.send_command("T")).code == ResponseCode.NO_PERMISSION


def test_a_heartbeat_with_many_groups(secured: BrokerHarness, stranger: AccessKey | None) -> None:
    groups = [{"groupName": f"g{i}", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]} for i in range(1000)]
    body = msgspec.json.encode({"clientID": "c", "consumerDataSet": groups})
    before = state_of(secured)
    rejected(secured, Command(code=RequestCode.HEART_BEAT, body=body), stranger)
    assert state_of(secured) == before


def test_a_copy_of_the_blocks(secured: BrokerHarness, stranger: AccessKey | None) -> None:
    """Neither the messages are read, nor does a forged progress count as the copy of a replica."""
    secret = secured.send_command("T", b"secret", properties={props.DELAY_IN_SECONDS: "900"})
    assert ask(secured, secret, ROOT).code == 0
    source = secured.broker.parts.replication.block_source
    (block,) = source.blocks
    epoch = secured.broker.parts.replication.epoch
    place = BlockPlace(block.number, block.start_ms, 1, 0, LogPosition(0), 200, epoch)
    check = Command(code=RequestCode.WMQ_CHECK_BLOCKS, body=pack_all(BLOCK_PLACE, [place]))
    rejected(secured, check, stranger)
    for claimed in (0, 1):
        progress = pack_all(BLOCK_PROGRESS, [(block.number, claimed)])
        asked = ask_for_blocks(secured, secured.connect(), stranger, progress)
        assert asked.answer is not None and asked.answer.code == ResponseCode.NO_PERMISSION and not asked.answer.body
    assert not source.sessions and source.lacks() == {}


def test_random_fields_in_every_request(secured: BrokerHarness, stranger: AccessKey | None) -> None:
    """The codes of the lease answer with TOKEN or STALE, or with a header that is not valid."""
    random, before = Random(20_261_125), None
    codes = sorted(HANDLERS)
    samples = {code: sample(secured, RequestCode(code)) for code in codes}
    before = state_of(secured)
    for _ in range(RANDOM_REQUESTS):
        code = random.choice(codes)
        ext = dict(samples[code].ext)
        for name in random.sample(sorted(ext), 6):
            ext[name] = random.choice(NASTY)
        body = random.choice((bytes(samples[code].body), b"", b"[]", b'{"topic":"T"}', random.randbytes(40)))
        command = Command(code=code, ext=ext, body=body)
        if stranger is not None:
            stranger.sign(command)
        asked = secured.submit(command, secured.connect())
        secured.tick()
        assert asked.answer is not None, code
        if RULES[RequestCode(code)].by_lease:
            assert asked.answer.code != ResponseCode.SUCCESS and not asked.answer.body
        else:
            is_empty = stranger is BOB and asked.answer.code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
            assert is_empty or asked.answer.code == ResponseCode.NO_PERMISSION, (code, ext, body, asked.answer)
            assert not asked.answer.body, (code, asked.answer)
    assert state_of(secured) == before
