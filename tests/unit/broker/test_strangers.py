"""Forged requests of a client without a signature and of a user without rights: none of them changes anything."""

from __future__ import annotations

import base64
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
from tests.unit.broker.test_send import spelled_out
from wheelmq.auth.rules import RULES
from wheelmq.auth.users import UserKind
from wheelmq.broker.handlers import HANDLERS
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.turn_row import TURN_ROW
from wheelmq.formats.names import (
    BLOCK_TOPIC,
    DEAD_LETTER_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
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
SYSTEM_TOPICS = (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    BLOCK_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    DEAD_LETTER_TOPIC,
    "%RETRY%g",
    "%DLQ%g",
)
FORGED = (
    {},
    {props.WMQ_ORIGIN: "3000000000000000", props.REAL_TOPIC: "Victim", props.REAL_QID: "0"},
    {props.WMQ_DUE: "0000000000001", props.TIMER_OUT_MS: "1"},
    {props.TIMER_DEL_UNIQKEY: "Victim+K", props.TIMER_DELAY_MS: "1000"},
)


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
    [
        {"position": 1 << 40},
        {"position": -4096},
        {"origin": 0x7000000000000000},
        {"origin": -1},
        {"fire_ms": 1 << 60},
        {"fire_ms": 0},
        {"slot_ms": -(1 << 62)},
        {"size": -5},
        {"magic": 4},
    ],
    ids=lambda fields: " ".join(f"{name}={value}" for name, value in fields.items()),
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


@pytest.mark.parametrize(
    "name", ["T/0", "rmq_sys_wheel_timer/0", "evil/0", "../../../evil/0", "../commitlog/0", "x", "\x00"]
)
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


def test_a_heartbeat_with_expensive_filters(
    secured: BrokerHarness, stranger: AccessKey | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check comes before the filters are compiled."""
    filters = secured.broker.parts.consumer_filters
    texts = ("-" * 16_383, "(" * 15_000, " OR ".join(["KEYS CONTAINS 'x'"] * 450))
    subscriptions = [
        {"topic": f"T{i}", "subString": text, "expressionType": "SQL92", "subVersion": i + 1}
        for i, text in enumerate(texts)
    ]
    group = {"groupName": "g", "subscriptionDataSet": subscriptions}
    body = msgspec.json.encode({"clientID": "c", "consumerDataSet": [group]})
    before = filters.changes
    rejected(secured, Command(code=RequestCode.HEART_BEAT, body=body), stranger)
    for text in texts:
        pull = secured.pull_command("T", consumerGroup="g", subscription=text, expressionType="SQL92", sysFlag=4)
        rejected(secured, pull, stranger)
    assert filters.changes == before


def test_pulls_and_offsets_of_new_groups(secured: BrokerHarness, stranger: AccessKey | None) -> None:
    before = state_of(secured)
    for i in range(300):
        rejected(secured, secured.pull_command("T", consumerGroup=f"new{i}", sysFlag=6), stranger)
        ext = headers.texts(consumerGroup=f"new{i}", topic="T", queueId=0, commitOffset=1 << 62)
        rejected(secured, Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, ext=ext), stranger)
    assert state_of(secured) == before and not secured.broker.parts.consumer_offsets.table().offset_table


def test_locks_of_many_queues(secured: BrokerHarness, stranger: AccessKey | None) -> None:
    queues = [{"brokerName": "broker-a", "topic": f"T{i}", "queueId": i} for i in range(10_000)]
    body = msgspec.json.encode({"clientId": "c", "consumerGroup": "g", "mqSet": queues})
    rejected(secured, Command(code=RequestCode.LOCK_BATCH_MQ, body=body), stranger)


@pytest.mark.parametrize("topic", [*SYSTEM_TOPICS, "Victim", "T", "TBW102"])
def test_sends_with_properties_of_the_broker(secured: BrokerHarness, stranger: AccessKey | None, topic: str) -> None:
    """All five codes of sends, in both header forms for those that have two."""
    pending = secured.send_command("Victim", b"victim", delay_ms=5000, properties={props.UNIQ_KEY: "K"})
    assert ask(secured, pending, ROOT).code == 0
    before = state_of(secured)
    for properties in FORGED:
        v2 = secured.send_command(topic, properties=dict(properties))
        v1 = spelled_out(v2)
        for made, codes in (
            (v1, (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)),
            (v2, (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)),
        ):
            for code in codes:
                rejected(secured, Command(code=code, ext=dict(made.ext), body=b"forged"), stranger)
    assert state_of(secured) == before
    secured.advance(6000)
    assert [record.message.body for record in stored(secured, "Victim")] == [b"victim"]


def test_a_recall_by_a_forged_handle(secured: BrokerHarness, stranger: AccessKey | None) -> None:
    """A handle has no secret: it consists of topic, time and key."""
    pending = secured.send_command("Victim", b"victim", delay_ms=5000, properties={props.UNIQ_KEY: "K"})
    assert ask(secured, pending, ROOT).code == 0
    for topic, key in (("Victim", "K"), ("T", "Victim+K"), ("Victim", "K\x02__WMQ_ORIGIN\x013000000000000000")):
        text = f"v1 {topic} broker-a {secured.now_ms + 5000} {key}"
        ext = {"topic": topic, "recallHandle": base64.urlsafe_b64encode(text.encode()).decode(), "producerGroup": "g"}
        rejected(secured, Command(code=RequestCode.RECALL_MESSAGE, ext=ext), stranger)
    secured.advance(6000)
    assert [record.message.body for record in stored(secured, "Victim")] == [b"victim"]


@pytest.mark.parametrize("commit", [8, 12, 0])
def test_the_end_of_a_transaction_of_others(secured: BrokerHarness, stranger: AccessKey | None, commit: int) -> None:
    half = secured.send_command("Victim", b"half", properties={props.TRAN_MSG: "true", props.PRODUCER_GROUP: "p"}, f=4)
    sent = ask(secured, half, ROOT)
    assert sent.code == 0
    position = int(sent.ext["msgId"][16:], 16)
    for topic in ("Victim", "T", ""):
        ext = headers.texts(
            producerGroup="p", topic=topic, tranStateTableOffset=0, commitLogOffset=position, commitOrRollback=commit
        )
        rejected(secured, Command(code=RequestCode.END_TRANSACTION, ext=ext), stranger)
    assert stored(secured, "Victim") == []


def test_the_deletion_of_topics_and_groups_and_resets_of_offsets(
    secured: BrokerHarness, stranger: AccessKey | None
) -> None:
    before = state_of(secured)
    for code, ext in (
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "removeOffset": "true"}),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"}),
        (RequestCode.CLEAN_UNUSED_TOPIC, {}),
        (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, {}),
        (RequestCode.DELETE_EXPIRED_COMMITLOG, {}),
        (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "evil", "topic": "T"}),
    ):
        rejected(secured, Command(code=code, ext=dict(ext)), stranger)
    configs = [{"topicName": f"evil{i}", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for i in range(1000)]
    body = msgspec.json.encode({"topicConfigList": configs})
    rejected(secured, Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body), stranger)
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
