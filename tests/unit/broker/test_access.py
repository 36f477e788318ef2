"""Each request code without a signature, with a wrong one, with a replayed one, without rights and with others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.broker.sample_requests import ROOT, TOPIC, sample
from wheelmq.auth.needs import REPLICATION_RIGHT, Right
from wheelmq.auth.policies import AccessList, AclEntry, Action, Decision, Resource, ResourceKind
from wheelmq.auth.rules import RULES
from wheelmq.auth.users import UserKind, UserStatus
from wheelmq.broker.handlers import HANDLERS
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.message_id import offset_message_id
from wheelmq.formats.java import java_hash
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import SIGNATURE, AccessKey
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import Ask, BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

BOB, EVE = (AccessKey(name, f"the secret of {name}") for name in ("bob", "eve"))
LEASE_CODES = [code for code, rule in RULES.items() if rule.by_lease]
SIGNED_CODES = [code for code, rule in RULES.items() if not rule.by_lease]
CODES_WITH_NEEDS = [code for code in SIGNED_CODES if RULES[code].needs]


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[BrokerHarness]:
    """A broker with the super user root, and with bob and eve, who have no rights. T has a message."""
    with BrokerHarness(tmp_path / "store", authentication_enabled=True, authorization_enabled=True) as harness:
        add(harness, ROOT, UserKind.SUPER)
        add(harness, BOB)
        add(harness, EVE)
        for _ in range(2):
            assert ask(harness, harness.send_command(TOPIC), ROOT).code == ResponseCode.SUCCESS
        yield harness


def add(harness: BrokerHarness, key: AccessKey, kind: UserKind = UserKind.NORMAL) -> None:
    tables = harness.broker.parts.access.tables
    tables.change_user(key.name, tables.users.make(key.name, key.secret, kind))


def grant(harness: BrokerHarness, key: AccessKey, *rights: Right) -> None:
    """Give a user exactly one action of each right."""
    entries = [AclEntry(ask.resource, frozenset({min(ask.actions)}), Decision.ALLOW) for ask in rights]
    harness.broker.parts.access.tables.change_acl(key.name, AccessList(custom=entries))


def ask(harness: BrokerHarness, command: Command, key: AccessKey | None = None) -> Command:
    if key is not None:
        key.sign(command)
    asked = harness.submit(command, harness.connect())
    harness.tick()
    waits_ms = harness.broker.parts.settings.requests.response_timeout_ms
    while asked.answer is None and waits_ms > 0:  # it waits for a client that does not answer
        harness.advance(500)
        waits_ms -= 500
    assert asked.answer is not None, command.code
    return asked.answer


def asks_of(harness: BrokerHarness, command: Command) -> list[Right]:
    here = harness.broker.parts.access.gate._here
    return [one for need in RULES[RequestCode(command.code)].needs for one in need.rights(command, here)]


def state_of(harness: BrokerHarness) -> tuple[object, ...]:
    """Return what a request could change."""
    parts = harness.broker.parts
    tables = parts.access.tables
    return (
        parts.store.log.end,
        sorted(parts.topics.all()),
        sorted(parts.groups.table().subscription_group_table),
        parts.configuration.version,
        tables.users.all(),
        tables.acls.all(),
        len(parts.clients.consumers),
        parts.timer.turns.holder,
    )


def stored(harness: BrokerHarness, topic: str) -> list[Record]:
    """Return the records of queue 0 of a topic, which no request reads here."""
    store = harness.broker.parts.store
    queue = store.queues.find(topic, 0)
    if queue is None or queue.end == queue.start:
        return []
    places = queue.read(queue.start, queue.end - queue.start)["position"].tolist()
    found = [store.log.record_at(LogPosition(place)) for place in places]
    return [record for record in found if record is not None]


class TestEachCode:
    def test_every_code_has_a_rule_and_every_free_one_a_reason(self) -> None:
        assert set(RULES) == set(RequestCode)
        assert set(HANDLERS) <= set(RULES)
        for code, rule in RULES.items():
            assert bool(rule.needs) + bool(rule.why_free) + rule.by_lease == 1, code
        free = {code for code, rule in RULES.items() if rule.why_free}
        assert not free & set(HANDLERS), "each request that a broker serves needs a right"

    def test_an_unsigned_request_is_rejected(self, secured: BrokerHarness) -> None:
        before = state_of(secured)
        for code in SIGNED_CODES:
            answer = ask(secured, sample(secured, code))
            assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "username cannot be null."), code
        assert state_of(secured) == before

    @pytest.mark.parametrize("key", [AccessKey("root", "a wrong secret"), AccessKey("nobody", "the secret of root")])
    def test_a_wrong_signature_is_rejected(self, secured: BrokerHarness, key: AccessKey) -> None:
        before = state_of(secured)
        for code in SIGNED_CODES:
            answer = ask(secured, sample(secured, code), key)
            assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "check signature failed."), code
        assert state_of(secured) == before

    def test_a_signature_of_another_request_is_rejected(self, secured: BrokerHarness) -> None:
        """It is taken from a request of the same user that passed."""
        before = state_of(secured)
        stolen = Command(code=RequestCode.GET_MAX_OFFSET, ext={"topic": TOPIC, "queueId": "1"})
        assert ask(secured, stolen, ROOT).code == ResponseCode.SUCCESS
        for code in SIGNED_CODES:
            command = sample(secured, code)
            command.ext |= {"AccessKey": "root", SIGNATURE: stolen.ext[SIGNATURE]}
            answer = ask(secured, command)
            assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "check signature failed."), code
        assert state_of(secured) == before

    def test_a_user_without_rights_is_rejected(self, secured: BrokerHarness) -> None:
        before = state_of(secured)
        for code in CODES_WITH_NEEDS:
            answer = ask(secured, sample(secured, code), BOB)
            assert answer.code == ResponseCode.NO_PERMISSION, code
            assert (answer.remark or "").startswith("User:bob has no permission to access "), (code, answer.remark)
            assert (answer.remark or "").endswith(" from 10.0.0.1, no matched policies."), (code, answer.remark)
        assert state_of(secured) == before

    def test_a_user_with_rights_on_other_resources_is_rejected(self, secured: BrokerHarness) -> None:
        others = [Resource(kind, "other") for kind in (ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.CLUSTER)]
        grant(secured, BOB, *(Right(one, frozenset({Action.ALL})) for one in others))
        before = state_of(secured)
        for code in CODES_WITH_NEEDS:
            answer = ask(secured, sample(secured, code), BOB)
            assert answer.code == ResponseCode.NO_PERMISSION, code
        assert state_of(secured) == before

    def test_a_user_with_other_actions_is_rejected(self, secured: BrokerHarness) -> None:
        for code in CODES_WITH_NEEDS:
            command = sample(secured, code)
            asks = asks_of(secured, command)
            assert asks, f"the sample of {code.name} names no resource"
            others = [Right(one.resource, frozenset(set(Action) - one.actions - {Action.ALL})) for one in asks]
            entries = [AclEntry(one.resource, one.actions, Decision.ALLOW) for one in others]
            secured.broker.parts.access.tables.change_acl("bob", AccessList(custom=entries))
            assert ask(secured, command, BOB).code == ResponseCode.NO_PERMISSION, code

    def test_a_request_builds_no_sets_of_actions(self, secured: BrokerHarness) -> None:
        """The rights of each send are found again, so the sets are those of its rule."""
        for code in CODES_WITH_NEEDS:
            command = sample(secured, code)
            for first, second in zip(asks_of(secured, command), asks_of(secured, command), strict=True):
                assert first == second and first.actions is second.actions, code

    def test_each_right_is_needed(self, secured: BrokerHarness) -> None:
        for code in CODES_WITH_NEEDS:
            asks = list(dict.fromkeys(asks_of(secured, sample(secured, code))))
            for missing in asks:
                grant(secured, BOB, *(one for one in asks if one.resource != missing.resource))
                answer = ask(secured, sample(secured, code), BOB)
                assert answer.code == ResponseCode.NO_PERMISSION, (code, missing)

    def test_the_rights_of_the_rule_are_enough(self, secured: BrokerHarness) -> None:
        for code in CODES_WITH_NEEDS:
            grant(secured, BOB, *asks_of(secured, sample(secured, code)))
            answer = ask(secured, sample(secured, code), BOB)
            assert "has no permission to access" not in (answer.remark or ""), (code, answer.remark)

    def test_a_super_user_needs_no_rights(self, secured: BrokerHarness) -> None:
        for code in SIGNED_CODES:
            answer = ask(secured, sample(secured, code), ROOT)
            assert "has no permission to access" not in (answer.remark or ""), code
            assert "signature" not in (answer.remark or ""), code

    def test_a_disabled_user_is_rejected(self, secured: BrokerHarness) -> None:
        tables = secured.broker.parts.access.tables
        tables.change_user("bob", tables.users.make("bob", status=UserStatus.DISABLE))
        for code in SIGNED_CODES:
            answer = ask(secured, sample(secured, code), BOB)
            assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "User:bob is disabled."), code

    def test_an_unknown_code_needs_a_user_only(self, secured: BrokerHarness) -> None:
        unknown = Command(code=77_777)
        assert ask(secured, unknown).code == ResponseCode.NO_PERMISSION
        assert ask(secured, unknown, BOB).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class TestLeaseToken:
    """With authentication and without it, only the holder of the lease gets through."""

    @pytest.fixture(params=[True, False], ids=["authentication", "none"])
    def broker(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerHarness]:
        with BrokerHarness(tmp_path / "store", authentication_enabled=request.param) as harness:
            add(harness, ROOT, UserKind.SUPER)
            add(harness, EVE)
            yield harness

    def test_a_request_without_the_token_is_rejected_and_changes_nothing(self, broker: BrokerHarness) -> None:
        model = PipelineModel(broker)
        model.open()
        assert ask(broker, broker.send_command(TOPIC, delay_ms=3000), ROOT).code == 0
        broker.advance(1000)
        plan = model.plan()
        assert plan is not None and model.terms is not None
        turns = broker.broker.parts.timer.turns
        for code in LEASE_CODES:
            for token in (None, "", "x" * 43, model.terms["token"][:-1], "ü"):
                for key in (None, EVE, ROOT):
                    command = sample(broker, code)
                    command.ext |= {"epoch": str(plan.epoch), "turn": str(plan.turn), "kind": "queue"}
                    command.ext |= {} if token is None else {"token": token}
                    answer = ask(broker, command, key)
                    assert answer.code == ResponseCode.NO_PERMISSION, (code, token)
                    assert (answer.remark or "").startswith("TOKEN: "), answer.remark
                    assert not answer.body and model.terms["token"] not in str(answer)
        assert (turns.plan, turns.turn, len(turns._uploads)) == (plan, plan.turn - 1, 0)
        model.renew()
        assert model.turn()

    def test_no_other_answer_has_the_token(self, broker: BrokerHarness) -> None:
        model = PipelineModel(broker)
        model.open()
        token = model.terms["token"]
        assert len(token) >= 43
        ask(broker, broker.send_command(TOPIC), ROOT)
        for code in RequestCode:
            answer = ask(broker, sample(broker, code), ROOT)
            assert token not in str(answer) and token.encode() not in bytes(answer.body), code

    def test_each_lease_has_another_token(self, broker: BrokerHarness) -> None:
        model = PipelineModel(broker)
        tokens = set()
        for _ in range(3):
            model.open()
            tokens.add(model.terms["token"])
        assert len(tokens) == 3

    def test_the_token_of_a_former_lease_is_stale(self, broker: BrokerHarness) -> None:
        model = PipelineModel(broker)
        model.open()
        first = model.terms
        model.open()
        for epoch, start in ((first["epoch"], "STALE: "), (model.epoch, "TOKEN: ")):
            ext = {"epoch": str(epoch), "token": first["token"]}
            answer = broker.ask(Command(code=RequestCode.WMQ_PIPELINE_RENEW, ext=ext))
            assert (answer.remark or "").startswith(start)

    @pytest.mark.parametrize("key", [None, AccessKey("wheelmq-pipeline", "x" * 43), EVE])
    def test_nobody_else_gets_the_lease(self, broker: BrokerHarness, key: AccessKey | None) -> None:
        command = Command(code=RequestCode.WMQ_PIPELINE_OPEN, ext={"name": "p", "holderId": "1"})
        answer = ask(broker, command, key)
        assert answer.code == ResponseCode.NO_PERMISSION and not answer.body
        assert broker.broker.parts.timer.turns.holder is None

    def test_a_user_with_the_right_gets_the_lease_until_the_right_is_taken(self, broker: BrokerHarness) -> None:
        access = broker.broker.parts.access
        right = AclEntry(Resource.parse("Cluster:wheelmq_pipeline"), frozenset({Action.UPDATE}), Decision.ALLOW)
        access.tables.change_acl("eve", AccessList(custom=[right]))
        command = Command(code=RequestCode.WMQ_PIPELINE_OPEN, ext={"name": "p", "holderId": "1"})
        answer = ask(broker, command, EVE)
        assert answer.code == 0
        ext = {"epoch": str(broker.broker.parts.timer.turns.epoch), "token": broker.broker.parts.pipeline.lease.token}
        assert broker.ask(Command(code=RequestCode.WMQ_PIPELINE_RENEW, ext=ext)).code == 0
        access.tables.change_acl("eve", None)
        answer = broker.ask(Command(code=RequestCode.WMQ_PIPELINE_RENEW, ext=ext))
        assert answer.code == ResponseCode.NO_PERMISSION and "wheelmq_pipeline" in (answer.remark or "")

    def test_a_pattern_of_topics_does_not_give_the_lease(self, broker: BrokerHarness) -> None:
        access = broker.broker.parts.access
        entries = [
            AclEntry(Resource.parse(text), frozenset({Action.ALL}), Decision.ALLOW)
            for text in ("Topic:*", "Group:*", "Cluster:DefaultCluster")
        ]
        access.tables.change_acl("eve", AccessList(custom=entries))
        command = Command(code=RequestCode.WMQ_PIPELINE_OPEN, ext={"name": "p", "holderId": "1"})
        assert ask(broker, command, EVE).code == ResponseCode.NO_PERMISSION

    def test_the_key_of_the_pipeline_gives_nothing_else(self, secured: BrokerHarness) -> None:
        key = secured.broker.parts.pipeline_key
        copies = (RequestCode.WMQ_REPLICATION_STATE, RequestCode.WMQ_CHECK_BLOCKS, RequestCode.WMQ_READ_BLOCKS)
        for code in CODES_WITH_NEEDS:
            answer = ask(secured, sample(secured, code), key)
            needs_cluster = {one.resource.kind for one in asks_of(secured, sample(secured, code))}
            gets = all(Action.GET in one.actions for one in asks_of(secured, sample(secured, code)))
            is_allowed = code is RequestCode.WMQ_PIPELINE_OPEN or (needs_cluster == {ResourceKind.CLUSTER} and gets)
            is_allowed = is_allowed and code not in copies  # the state asks for a ticket
            assert ("has no permission" not in (answer.remark or "")) == is_allowed, (code, answer.remark)


class TestResourcesOfMessages:
    """A client cannot reach a message of another topic by its position, or by a topic that it claims."""

    @pytest.fixture
    def position(self, secured: BrokerHarness) -> int:
        """The log position of a message of the topic Secret. Bob may do everything with T and g."""
        assert ask(secured, secured.send_command("Secret", b"hidden"), ROOT).code == 0
        rights = [Resource(ResourceKind.TOPIC, TOPIC), Resource(ResourceKind.GROUP, "g")]
        grant(secured, BOB, *(Right(one, frozenset({Action.ALL})) for one in rights))
        group = Command(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"g"}')
        assert ask(secured, group, ROOT).code == 0
        return stored(secured, "Secret")[0].position

    @pytest.mark.parametrize(
        "code",
        [
            RequestCode.VIEW_MESSAGE_BY_ID,
            RequestCode.CONSUMER_SEND_MSG_BACK,
            RequestCode.END_TRANSACTION,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
        ],
    )
    def test_the_topic_of_the_message_decides(self, secured: BrokerHarness, position: int, code: RequestCode) -> None:
        command = sample(secured, code)
        message_id = offset_message_id(secured.broker.parts.host, LogPosition(position))
        command.ext |= {"offset": str(position), "commitLogOffset": str(position), "msgId": message_id}
        answer = ask(secured, command, BOB)
        assert answer.code == ResponseCode.NO_PERMISSION and "Topic:Secret" in (answer.remark or "")
        assert not answer.body and stored(secured, "%RETRY%g") == []

    def test_a_parked_message_belongs_to_its_real_topic(self, secured: BrokerHarness, position: int) -> None:
        for properties in ({props.TIMER_DELAY_MS: "20000"}, {props.DELAY: "9"}, {props.DELAY_IN_SECONDS: "90"}):
            sent = ask(secured, secured.send_command("Secret", properties=properties), ROOT)
            parked = int(sent.ext["msgId"][16:], 16)
            command = Command(code=RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": str(parked), "topic": TOPIC})
            answer = ask(secured, command, BOB)
            assert answer.code == ResponseCode.NO_PERMISSION and "Topic:Secret" in (answer.remark or ""), properties

    def test_a_real_topic_that_a_client_wrote_does_not_count(self, secured: BrokerHarness, position: int) -> None:
        """REAL_TOPIC of a message that is not parked is the sender's own text."""
        forged = secured.send_command("Secret", properties={props.REAL_TOPIC: TOPIC})
        sent = ask(secured, forged, ROOT)
        offset = int(sent.ext["msgId"][16:], 16)
        answer = ask(secured, Command(code=RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": str(offset)}), BOB)
        assert "Topic:Secret" in (answer.remark or "")

    def test_a_query_returns_no_message_of_another_topic_with_the_same_hash(
        self, secured: BrokerHarness, position: int
    ) -> None:
        """The index has only a hash of topic and key, so a client can choose a key that finds another topic."""
        hidden = secured.send_command("Secret", b"hidden", properties={props.KEYS: "K1"})
        assert ask(secured, hidden, ROOT).code == 0
        colliding = key_with_the_hash_of("Secret#K1", TOPIC)
        fields = {"topic": TOPIC, "key": colliding, "maxNum": "10", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
        secured.advance(2000)
        answer = ask(secured, Command(code=RequestCode.QUERY_MESSAGE, ext=dict(fields)), BOB)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND and b"hidden" not in bytes(answer.body)


def key_with_the_hash_of(text: str, topic: str) -> str:
    """Return a key whose index entry for `topic` has the hash of `text` (Java's String.hashCode)."""
    wanted = java_hash(text) & 0xFFFF_FFFF
    prefix = f"{topic}#k"
    at = java_hash(prefix) & 0xFFFF_FFFF
    # 7 characters: base 31 digits that reach the wanted hash from `at`
    left = (wanted - at * pow(31, 7, 1 << 32)) & 0xFFFF_FFFF
    for low in range(48, 48 + 31):
        digits, rest = [], (left - sum(low * 31**i for i in range(7))) % (1 << 32)
        for _ in range(7):
            rest, digit = divmod(rest, 31)
            digits.append(chr(low + digit))
        key = "k" + "".join(reversed(digits))
        if java_hash(f"{topic}#{key}") & 0xFFFF_FFFF == wanted:
            return key
    raise AssertionError("no key was found")


class TestHeldRequests:
    def test_a_held_pull_is_not_answered_after_its_user_lost_the_right(self, secured: BrokerHarness) -> None:
        rights = [Resource(ResourceKind.TOPIC, TOPIC), Resource(ResourceKind.GROUP, "g")]
        grant(secured, BOB, *(Right(one, frozenset({Action.ALL})) for one in rights))
        pull = secured.pull_command(TOPIC, offset=2, hold_ms=20_000, consumerGroup="g")
        BOB.sign(pull)
        held = secured.submit(pull, secured.connect())
        secured.tick()
        assert held.answer is None, "the pull waits for a message"
        secured.broker.parts.access.tables.change_acl("bob", None)
        assert ask(secured, secured.send_command(TOPIC, b"too late"), ROOT).code == 0
        assert held.answer is not None and held.answer.code == ResponseCode.NO_PERMISSION
        assert not held.answer.body

    def test_a_held_read_of_blocks_is_not_answered_after_its_user_lost_the_right(self, secured: BrokerHarness) -> None:
        grant(secured, BOB, REPLICATION_RIGHT)
        peer = secured.connect()
        first = ask_for_blocks(secured, peer, BOB).answer
        assert first is not None and first.code == 0
        held = ask_for_blocks(secured, peer, BOB, session=first.ext["session"], timeoutMs=20_000)
        assert held.answer is None, "the read waits for a message"
        secured.broker.parts.access.tables.change_acl("bob", None)
        late = secured.send_command(TOPIC, b"too late", properties={props.DELAY_IN_SECONDS: "90"})
        assert ask(secured, late, ROOT).code == 0
        assert held.answer is not None and held.answer.code == ResponseCode.NO_PERMISSION
        assert not held.answer.body

    def test_a_held_pull_is_answered_after_an_unrelated_change(self, secured: BrokerHarness) -> None:
        rights = [Resource(ResourceKind.TOPIC, TOPIC), Resource(ResourceKind.GROUP, "g")]
        grant(secured, BOB, *(Right(one, frozenset({Action.ALL})) for one in rights))
        pull = secured.pull_command(TOPIC, offset=2, hold_ms=20_000, consumerGroup="g")
        BOB.sign(pull)
        held = secured.submit(pull, secured.connect())
        secured.tick()
        grant(secured, EVE, *(Right(one, frozenset({Action.ALL})) for one in rights))
        assert ask(secured, secured.send_command(TOPIC, b"in time"), ROOT).code == 0
        assert held.answer is not None and held.answer.code == 0 and b"in time" in bytes(held.answer.body)


def ask_for_blocks(
    harness: BrokerHarness, peer: FakeConnection, key: AccessKey | None, body: bytes = b"", **fields: object
) -> Ask:
    """Send the request of a replica that has the units in `body`."""
    command = sample(harness, RequestCode.WMQ_READ_BLOCKS)
    command.body = body
    command.ext |= headers.texts(epoch=harness.broker.parts.replication.epoch, **fields)
    if key is not None:
        key.sign(command)
    asked = harness.submit(command, peer)
    harness.tick()
    return asked


class TestReplays:
    def test_the_same_request_on_another_connection_passes(self, secured: BrokerHarness) -> None:
        """The protocol has no nonce: whoever can read a request can send it again. Only TLS prevents that."""
        command = secured.send_command(TOPIC, b"again")
        assert ask(secured, command, ROOT).code == 0
        assert ask(secured, Command(code=command.code, ext=dict(command.ext), body=command.body)).code == 0

    def test_a_changed_field_or_body_does_not_pass(self, secured: BrokerHarness) -> None:
        command = secured.send_command(TOPIC, b"body")
        ROOT.sign(command)
        changed = Command(code=command.code, ext={**command.ext, "b": "Other"}, body=command.body)
        assert (ask(secured, changed).remark or "") == "check signature failed."
        changed = Command(code=command.code, ext=dict(command.ext), body=b"other")
        assert (ask(secured, changed).remark or "") == "check signature failed."
