"""Hooks: code of an operator's own around requests, sends and consumption (RocketMQ: RPCHook, SendMessageHook,
ConsumeMessageHook). docs/hooks.md says when each is called.

    app = BrokerApp(settings)
    app.hooks.register_rpc_hook(MyHook())

`wheelmq broker` and `wheelmq up` load them with --hook MODULE:OBJECT (cli/hooks.py).

A hook runs on the broker's loop, so it must not wait for anything. Registered before the start or while the broker
runs, it is called from the next request on. While any is registered, sends are served by the plain code; while none
is, hooks cost nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from wheelmq.broker.request import Answer, Durable, DurableInBlock, PeerError
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command

log = logging.getLogger(__name__)


class RpcHook(Protocol):
    """Around every request, whatever its code; not around those that are told to come again before they are looked at.

    A PeerError that it raises is the answer; anything else that it raises is answered SYSTEM_ERROR.
    """

    def before_request(self, address: str, request: Command) -> None:
        """Called before the request is served. `address` is the client's, ip:port; the request may be changed."""
        ...

    def after_response(self, address: str, request: Command, response: Command | None) -> None:
        """Called once for each request, with its answer, which may be changed; also when a hook before it refused it.

        `response` is None when there is none, as to some oneway requests. A held pull is told of when it is answered,
        or its client goes; an answer that waits for the disk before it does.
        """
        ...


class MessageKind(StrEnum):
    """What a send asks for (RocketMQ: MessageType)."""

    NORMAL = "Normal_Msg"
    HALF = "Trans_Msg_Half"
    DELAY = "Delay_Msg"
    ORDER = "Order_Msg"


@dataclass(slots=True)
class SendMessageContext:
    """A send, for those who hook sends. What is said of its answer is there after it."""

    producer_group: str
    topic: str
    queue_id: int
    """-1 and below before the send: the broker picks one."""
    properties: str
    """As the client sent them."""
    unique_key: str
    kind: MessageKind
    is_batch: bool
    body_bytes: int
    born_host: str
    born_ms: int
    request_ms: int
    broker_address: str
    region: str
    code: int | None = None
    remark: str | None = None
    message_id: str | None = None
    queue_offset: int | None = None
    is_success: bool = False
    """Whether the message is stored; with SYNC_FLUSH it may still be on its way to the disk."""
    extra: dict[str, object] = field(default_factory=dict)
    """For the hooks' own use, from before to after."""


@dataclass(slots=True)
class ConsumeMessageContext:
    """Messages on their way to a consumer, or one that it hands back."""

    consumer_group: str
    topic: str
    queue_id: int | None
    """None when a message is handed back."""
    client_host: str
    store_host: str
    status: str
    """The remark of the pull's answer, such as FOUND; SEND_BACK or SEND_BACK_TO_DLQ."""
    message_count: int
    body_bytes: int
    """Of the answer's body: whole records."""
    is_success: bool


class SendMessageHook(Protocol):
    """Around sends: the codes 10, 310 and 320."""

    def send_message_before(self, context: SendMessageContext) -> None:
        """Raising PeerError refuses the send with that answer; anything else that is raised is logged."""
        ...

    def send_message_after(self, context: SendMessageContext) -> None:
        """Called whatever came of the send; what it raises is logged."""
        ...


class ConsumeMessageHook(Protocol):
    """Around consumption. What these raise is logged."""

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """A pull is about to be answered, with messages or without."""
        ...

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """A consumer has handed a message back, or tried to."""
        ...


TopicAuthority = Callable[[str, str, str], str | None]
"""Given the client's address, its producer group and the topic of a send: why it is forbidden, or None."""


class Hooks:
    """Those that are registered, called in the order of their registration."""

    def __init__(self) -> None:
        self.rpc: list[RpcHook] = []
        self.send: list[SendMessageHook] = []
        self.consume: list[ConsumeMessageHook] = []
        self.authorities: list[TopicAuthority] = []

    def register_rpc_hook(self, hook: RpcHook) -> None:
        """Have `hook` called around every request."""
        self.rpc.append(hook)

    def register_send_message_hook(self, hook: SendMessageHook) -> None:
        """Have `hook` called around every send."""
        self.send.append(hook)

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """Have `hook` called when messages go out to consumers, and when they come back."""
        self.consume.append(hook)

    def register_topic_authority(self, authority: TopicAuthority) -> None:
        """Have `authority` asked before each send; a text refuses it with NO_PERMISSION."""
        self.authorities.append(authority)

    @property
    def see_sends(self) -> bool:
        """Whether a send must not go past them."""
        return bool(self.rpc or self.send or self.authorities)

    def check_topic(self, address: str, group: str, topic: str) -> None:
        """Raises PeerError when somebody forbids the send."""
        for authority in self.authorities:
            why = authority(address, group, topic)
            if why is not None:
                raise PeerError(ResponseCode.NO_PERMISSION, why)

    def before_send(self, context: SendMessageContext) -> None:
        """Raises PeerError when a hook refuses the send."""
        for hook in self.send:
            try:
                hook.send_message_before(context)
            except PeerError:
                raise
            except Exception:
                log.exception("a hook before a send")

    def after_send(self, context: SendMessageContext, answer: Answer) -> None:
        """Tell what came of a send."""
        found = answer.reply if isinstance(answer, Durable | DurableInBlock) else answer
        if isinstance(found, Command):
            context.code, context.remark = found.code, found.remark
            context.message_id = found.ext.get("msgId")
            context.is_success = context.message_id is not None
            if context.is_success:
                context.queue_id, context.queue_offset = int(found.ext["queueId"]), int(found.ext["queueOffset"])
        for hook in self.send:
            try:
                hook.send_message_after(context)
            except Exception:
                log.exception("a hook after a send")

    def before_consume(self, context: ConsumeMessageContext) -> None:
        """Tell of an answer to a pull."""
        for hook in self.consume:
            try:
                hook.consume_message_before(context)
            except Exception:
                log.exception("a hook before messages go to a consumer")

    def after_consume(self, context: ConsumeMessageContext) -> None:
        """Tell of a message that was handed back."""
        for hook in self.consume:
            try:
                hook.consume_message_after(context)
            except Exception:
                log.exception("a hook after a message was handed back")
