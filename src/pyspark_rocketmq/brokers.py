"""Requests of the sink to brokers that may be busy or restarting, with guarantee exactly-once."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Final

from pyspark_rocketmq import retries
from pyspark_rocketmq.cluster import Cluster, rejected
from pyspark_rocketmq.errors import BrokerError, OptionError, SilentBroker
from pyspark_rocketmq.retries import RETRY_DELAYS_S
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError

log = logging.getLogger(__name__)

BUSY: Final = (*retries.BUSY, ResponseCode.SLAVE_NOT_AVAILABLE)
"""Answers of a broker that can accept the request later, or whose successor can."""


def asked_once(cluster: Cluster, broker: str, command: Command) -> Command | None:
    """Return the answer of a broker, with any code, or None without one."""
    try:
        return cluster.link(broker).call(command)
    except (CallError, SilentBroker) as error:
        log.info("broker %s does not answer: %s", broker, error)
        return None


def answered(cluster: Cluster, broker: str, command: Command) -> Command:
    """Return the answer of a broker, with code SUCCESS. Raises OptionError, BrokerError for any other.

    The request is repeated while the broker is busy or away, also at a new address.
    """
    for delay_s in (*RETRY_DELAYS_S, None):
        answer = asked_once(cluster, broker, command)
        if answer is not None and answer.code not in BUSY:
            return accepted(answer, broker)
        if delay_s is not None:
            threading.Event().wait(delay_s)
            refresh_addresses(cluster)
    raise silent(broker) if answer is None else rejected(answer, broker)


def refresh_addresses(cluster: Cluster) -> None:
    """Learn the current addresses of all brokers, if a name server answers."""
    with contextlib.suppress(BrokerError):
        cluster.registered()


def silent(broker: str) -> SilentBroker:
    return SilentBroker(f"broker {broker} does not answer: start it, or check the network")


def accepted(answer: Command, broker: str) -> Command:
    """Return an answer with code SUCCESS. Raises OptionError, BrokerError for any other."""
    if answer.code == ResponseCode.SUCCESS:
        return answer
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise OptionError(
            f"guarantee is exactly-once, and broker {broker} does not know its requests: use brokers of WheelMQ, of "
            "this version or a newer one, or set guarantee to at-least-once"
        )
    raise rejected(answer, broker)
