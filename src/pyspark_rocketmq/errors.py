"""The errors of the connector. Each text names the option or column, the value and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_rocketmq.retries import BUSY

if TYPE_CHECKING:
    from wheelmq.formats.wire.frame import Command


class OptionError(ValueError):
    """An option, a schema or a value is wrong."""


class DataLossError(RuntimeError):
    """Messages of the requested range no longer exist."""


class BrokerError(RuntimeError):
    """A server does not answer, or rejects a request of the connector."""

    def __init__(self, text: str, answer: Command | None = None) -> None:
        super().__init__(text)
        self.answer = answer
        """The answer that rejects the request; None without one."""

    @property
    def is_passing(self) -> bool:
        """Whether the server can accept the request later: it is busy, or does not answer."""
        return self.answer is not None and self.answer.code in BUSY


class SilentNames(BrokerError):
    """No name server answers."""


class SilentBroker(BrokerError):
    """A broker does not answer, or is not registered."""

    @property
    def is_passing(self) -> bool:
        return True
