"""The WheelMQ client for WheelMQ and Apache RocketMQ: async classes, with sync wrappers (docs/client.md)."""

from wheelmq.client.admin import Admin, Span
from wheelmq.client.allocation import allocate, allocate_in_turn
from wheelmq.client.consumer_settings import Consumed, ConsumerSettings, Later, Model, PullSettings, StartFrom
from wheelmq.client.delays import TooFarAhead
from wheelmq.client.message import MessageError, ReceivedMessage
from wheelmq.client.outgoing import MessageOptions, OutgoingMessage
from wheelmq.client.producer import Producer, ProducerSettings
from wheelmq.client.pull_consumer import PullConsumer
from wheelmq.client.push_consumer import PushConsumer
from wheelmq.client.results import CancelResult, SendResult, SendStatus, TransactionResult, TransactionState
from wheelmq.client.routes import NoBroker, NoNameServer, TopicUnknown
from wheelmq.client.sync import (
    SyncAdmin,
    SyncProducer,
    SyncPullConsumer,
    SyncPushConsumer,
    SyncTransactionProducer,
)
from wheelmq.client.timers import PendingTimer
from wheelmq.client.transactions import TransactionProducer
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.net.errors import CallError, Refused, Unreachable
from wheelmq.system.tls import ServerCheck, TlsError
from wheelmq.system.tls_client import TlsOptions

__all__ = [
    "AccessKey",
    "Admin",
    "CallError",
    "CancelResult",
    "Consumed",
    "ConsumerSettings",
    "Later",
    "MessageError",
    "MessageOptions",
    "Model",
    "NoBroker",
    "NoNameServer",
    "OutgoingMessage",
    "PendingTimer",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PullSettings",
    "PushConsumer",
    "QueueName",
    "ReceivedMessage",
    "Refused",
    "SendResult",
    "SendStatus",
    "ServerCheck",
    "Span",
    "StartFrom",
    "SyncAdmin",
    "SyncProducer",
    "SyncPullConsumer",
    "SyncPushConsumer",
    "SyncTransactionProducer",
    "TlsError",
    "TlsOptions",
    "TooFarAhead",
    "TopicUnknown",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "Unreachable",
    "allocate",
    "allocate_in_turn",
]
