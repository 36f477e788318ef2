"""Our own client: async, with a thin sync face. It speaks to WheelMQ and to Apache RocketMQ alike."""

from wheelmq.client.consumer import Consumed, ConsumerSettings, PushConsumer, StartFrom
from wheelmq.client.message import MessageError, ReceivedMessage
from wheelmq.client.outgoing import OutgoingMessage
from wheelmq.client.producer import CancelResult, Producer, ProducerSettings, SendResult, SendStatus
from wheelmq.client.routes import NoBroker, NoNameServer, TopicUnknown
from wheelmq.client.sync import SyncProducer
from wheelmq.net.errors import CallError, Refused, Unreachable

__all__ = [
    "CallError",
    "CancelResult",
    "Consumed",
    "ConsumerSettings",
    "MessageError",
    "NoBroker",
    "NoNameServer",
    "OutgoingMessage",
    "Producer",
    "ProducerSettings",
    "PushConsumer",
    "ReceivedMessage",
    "Refused",
    "SendResult",
    "SendStatus",
    "StartFrom",
    "SyncProducer",
    "TopicUnknown",
    "Unreachable",
]
