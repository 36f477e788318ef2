"""GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY, INVOKE_BROKER_TO_GET_CONSUMER_STATUS.

Relays an administrator's request to the clients of a group (RocketMQ: AdminBrokerProcessor.callConsumer).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

import msgspec

from wheelmq.broker.answers import Answer, Deferred, PeerError, reply
from wheelmq.broker.calls import Unanswered
from wheelmq.broker.connection import peer_text
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import serves
from wheelmq.broker.request import Request
from wheelmq.broker.state.clients import Client
from wheelmq.formats.disk.message_id import parse_offset_message_id
from wheelmq.formats.wire import bodies, queue_tables
from wheelmq.formats.wire.client_calls import ConsumerStatus, ConsumerStatusHeader
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import ClientOfGroupHeader, texts

log = logging.getLogger(__name__)

_VERSION_ASKED: Final = 62
"""V3_1_8_SNAPSHOT: older clients support neither of these requests."""
VERSION_WITH_OFFSETS: Final = 28
"""V3_0_7_SNAPSHOT: older clients can neither report nor reset their offsets."""


@serves(RequestCode.GET_CONSUMER_RUNNING_INFO)
def get_running_info(request: Request, context: Context) -> Answer:
    """Return the running info of a client."""
    header = request.header(ClientOfGroupHeader)
    return _pass_on(request, context, header, Command(code=request.command.code, ext=dict(request.ext)))


@serves(RequestCode.CONSUME_MESSAGE_DIRECTLY)
def consume_directly(request: Request, context: Context) -> Answer:
    """Let a client consume the message of an offset message id now, and return the result."""
    header = request.header(ClientOfGroupHeader)
    ext = {**request.ext, "brokerName": context.settings.broker.name}
    topic = context.topics.get(header.topic or "")
    if topic is not None:
        ext["topicSysFlag"] = str(topic.topic_sys_flag)
    group = context.groups.get(header.consumer_group)
    if group is not None:
        ext["groupSysFlag"] = str(group.group_sys_flag)
    command = Command(code=request.command.code, ext=ext, body=_record(context, header.msg_id))
    return _pass_on(request, context, header, command)


def _record(context: Context, msg_id: str | None) -> bytes:
    try:
        _, position = parse_offset_message_id(msg_id or "")
    except ValueError as error:
        raise PeerError(ResponseCode.SYSTEM_ERROR, f"msgId is {msg_id!r}: {error}") from None
    record = context.store.log.record_at(position)
    if record is None:
        raise PeerError(ResponseCode.SYSTEM_ERROR, f"there is no message at the position that {msg_id} names")
    return context.store.log.gather([(position, record.size)])


def _pass_on(request: Request, context: Context, header: ClientOfGroupHeader, command: Command) -> Answer:
    """Ask the client, and relay its answer. Raises PeerError."""
    name = f"<{header.consumer_group}> <{header.client_id}>"
    group = context.clients.consumers.get(header.consumer_group)
    client = None if group is None else group.find(header.client_id or "")
    if client is None:
        raise PeerError(ResponseCode.SYSTEM_ERROR, f"The Consumer {name} not online")
    if client.version < _VERSION_ASKED:
        remark = (
            f"The Consumer {name} Version <{client.version}> too low to finish, please upgrade it to V3_1_8_SNAPSHOT"
        )
        raise PeerError(ResponseCode.SYSTEM_ERROR, remark)
    log.info("%s asks the client %s for code %d", peer_text(request.connection), name, command.code)
    waits_ms = context.settings.requests.response_timeout_ms

    def relayed(outcome: Command | Unanswered) -> Answer:
        if outcome is Unanswered.LATE:
            raise PeerError(ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer {name} Timeout: no answer in {waits_ms} ms")
        if outcome is Unanswered.GONE:
            raise PeerError(ResponseCode.SYSTEM_ERROR, f"invoke consumer {name} Exception: its connection is closed")
        if outcome is Unanswered.BUSY:
            remark = f"invoke consumer {name} Exception: too many bytes or requests are pending for it: try again"
            raise PeerError(ResponseCode.SYSTEM_BUSY, remark)
        return Command(code=outcome.code, remark=outcome.remark, ext=dict(outcome.ext), body=bytes(outcome.body))

    answer = Deferred()
    deadline_ms = context.clock.monotonic_ms() + waits_ms
    context.calls.ask(client.connection, command, deadline_ms, answer.callback(relayed))
    return answer


@serves(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
def get_consumer_status(request: Request, context: Context) -> Answer:
    """Return the offsets that the clients of a group report for each queue of a topic, of all clients or of one."""
    header = request.header(ConsumerStatusHeader)
    group = context.clients.consumers.get(header.group)
    if group is None:
        remark = f"No Any Consumer online in the consumer group: [{header.group}]"
        raise PeerError(ResponseCode.SYSTEM_ERROR, remark)
    asked = [one for one in group.clients.values() if not header.client_addr or one.client_id == header.client_addr]
    check_versions(asked, VERSION_WITH_OFFSETS)
    answer, tables = Deferred(), dict[str, object]()
    waiting = len(asked)

    def done(client: Client, outcome: Command | Unanswered) -> None:
        nonlocal waiting
        waiting -= 1
        if isinstance(outcome, Command) and outcome.code == ResponseCode.SUCCESS and outcome.body:
            try:
                told = bodies.read(outcome.body, ConsumerStatus).message_queue_table
                tables[client.client_id] = queue_tables.table(queue_tables.by_queue(told))
            except bodies.BodyError as error:
                log.warning(
                    "the client %s of group %s did not return its offsets: %s",
                    client.client_id,
                    header.group,
                    error,
                )
        if waiting == 0:
            answer.give(_status(tables))

    if not asked:
        return _status(tables)
    ext = texts(topic=header.topic, group=header.group)
    deadline_ms = context.clock.monotonic_ms() + context.settings.requests.response_timeout_ms
    for client in asked:
        command = Command(code=RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext=ext)
        context.calls.ask(client.connection, command, deadline_ms, partial(done, client))
    return answer


def _status(tables: dict[str, object]) -> Command:
    return reply(body=msgspec.json.encode({"consumerTable": tables}))


def check_versions(clients: list[Client], least: int) -> None:
    for client in clients:
        if client.version < least:
            remark = f"the client does not support this feature. version={client.version}"
            raise PeerError(ResponseCode.SYSTEM_ERROR, remark)
