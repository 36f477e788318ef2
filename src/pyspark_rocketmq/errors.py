"""The errors of the connector. Each text names the option or column, the value and the remedy."""

from __future__ import annotations


class OptionError(ValueError):
    """An option, a schema or a value is wrong."""


class DataLossError(RuntimeError):
    """Messages of the requested range no longer exist."""


class BrokerError(RuntimeError):
    """A server does not answer, or rejects a request of the connector."""


class SilentBroker(BrokerError):
    """A broker does not answer, or is not registered."""
