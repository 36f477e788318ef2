"""Hooks: an operator's own code around requests, sends and consumption. docs/hooks.md says when each is called.

RocketMQ: RPCHook, SendMessageHook, ConsumeMessageHook.

    app = BrokerApp(settings)
    app.hooks.register_rpc_hook(MyHook())

`wheelmq broker` and `wheelmq up` load them with --hook MODULE:OBJECT (cli/hooks.py).

A hook runs on the broker's loop, so it must not wait for anything. It can be registered before the start or while the
broker runs, and is called from the next request on. With a registered RPC hook, send hook or topic authority, the plain
code serves sends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from wheelmq.broker.answers import PeerError
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command

log = logging.getLogger(__name__)


class RpcHook(Protocol):
    """Called around every request, except requests that the overload guard rejects.

    A PeerError that it raises is the answer. Any other exception is answered with SYSTEM_ERROR.
    """

    def before_request(self, address: str, request: Command) -> None:
        """Called before the request is served. `address` is the client's ip:port. The hook may change the request."""
        ...

    def after_response(self, address: str, request: Command, response: Command | None) -> None:
        """Called once for each request, also when an earlier hook rejected it. The hook may change the response.

        `response` is None if there is none, as for some oneway requests. For a held pull, the call comes when it is
        answered or its client is gone. If an answer waits for the disk, the call comes before the wait.
        """
        ...


class MessageKind(StrEnum):
    """The kind of a send (RocketMQ: MessageType)."""

    NORMAL = "Normal_Msg"
    HALF = "Trans_Msg_Half"
    DELAY = "Delay_Msg"
    ORDER = "Order_Msg"


@dataclass(slots=True)
class SendMessageContext:
    """A send, for send hooks. The fields of the answer are set after the send."""

    producer_group: str
    topic: str
    queue_id: int
    """-1 or less before the send: the broker picks a queue."""
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
    """Whether the message is stored. With SYNC_FLUSH it may not be on disk yet."""
    extra: dict[str, object] = field(default_factory=dict)
    """For the hooks' own use, from before the send to after it."""


@dataclass(slots=True)
class ConsumeMessageContext:
    """Messages on their way to a consumer, or a message that a consumer sends back."""

    consumer_group: str
    topic: str
    queue_id: int | None
    """None when a message is sent back."""
    client_host: str
    store_host: str
    status: str
    """The remark of the pull's answer, such as FOUND; or SEND_BACK or SEND_BACK_TO_DLQ."""
    message_count: int
    body_bytes: int
    """Size of the answer's body, which has whole records."""
    is_success: bool


class SendMessageHook(Protocol):
    """Called around sends: the codes 10, 310 and 320."""

    def send_message_before(self, context: SendMessageContext) -> None:
        """Called before a send. A PeerError rejects the send with that answer. Any other exception is logged."""
        ...

    def send_message_after(self, context: SendMessageContext) -> None:
        """Called after a send, whatever its outcome. An exception is logged."""
        ...


class ConsumeMessageHook(Protocol):
    """Called around consumption. An exception is logged."""

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """Called before a pull is answered, with messages or without."""
        ...

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """Called after a consumer has sent a message back, or tried to."""
        ...


TopicAuthority = Callable[[str, str, str], str | None]
"""Returns why a send is forbidden, or None. Arguments: the client's address, the producer group, the topic."""


class Hooks:
    """The registered hooks, called in the order of their registration."""

    def __init__(self) -> None:
        self.rpc: list[RpcHook] = []
        self.send: list[SendMessageHook] = []
        self.consume: list[ConsumeMessageHook] = []
        self.authorities: list[TopicAuthority] = []

    def register_rpc_hook(self, hook: RpcHook) -> None:
        self.rpc.append(hook)

    def register_send_message_hook(self, hook: SendMessageHook) -> None:
        self.send.append(hook)

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """Call `hook` when messages go to consumers, and when consumers send them back."""
        self.consume.append(hook)

    def register_topic_authority(self, authority: TopicAuthority) -> None:
        """Call `authority` before each send. A text that it returns rejects the send with NO_PERMISSION."""
        self.authorities.append(authority)

    @property
    def see_sends(self) -> bool:
        """Whether hooks need to see the sends, so that the kernel must not serve them."""
        return bool(self.rpc or self.send or self.authorities)

    def check_topic(self, address: str, group: str, topic: str) -> None:
        for authority in self.authorities:
            why = authority(address, group, topic)
            if why is not None:
                raise PeerError(ResponseCode.NO_PERMISSION, why)

    def before_send(self, context: SendMessageContext) -> None:
        """Call the hooks before a send. Raises PeerError if one rejects it."""
        for hook in self.send:
            try:
                hook.send_message_before(context)
            except PeerError:
                raise
            except Exception:
                log.exception("a hook failed before a send")

    def after_send(self, context: SendMessageContext, answer: Command | None) -> None:
        if answer is not None:
            context.code, context.remark = answer.code, answer.remark
            context.message_id = answer.ext.get("msgId")
            context.is_success = context.message_id is not None
            if context.is_success:
                context.queue_id, context.queue_offset = int(answer.ext["queueId"]), int(answer.ext["queueOffset"])
        for hook in self.send:
            try:
                hook.send_message_after(context)
            except Exception:
                log.exception("a hook failed after a send")

    def before_consume(self, context: ConsumeMessageContext) -> None:
        for hook in self.consume:
            try:
                hook.consume_message_before(context)
            except Exception:
                log.exception("a hook failed before the answer to a pull")

    def after_consume(self, context: ConsumeMessageContext) -> None:
        for hook in self.consume:
            try:
                hook.consume_message_after(context)
            except Exception:
                log.exception("a hook failed after a consumer sent a message back")
