"""The present role of a broker: the master of its name, or a slave of it.

The settings name the role of the first start. A promotion or an election changes it, and the store remembers it.
"""

from __future__ import annotations

from wheelmq.broker.settings import BrokerSettings
from wheelmq.formats.wire.bodies import MASTER_ID


class Role:
    """The role of one broker, which other parts ask when they need it."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.is_master = not settings.starts_as_slave
        """Whether the broker stores messages of clients and releases delayed ones."""
        self.broker_id = settings.broker.id
        """The id with which the broker registers. A master has 0."""

    def become_master(self) -> None:
        self.is_master, self.broker_id = True, MASTER_ID

    @property
    def slave_text(self) -> str:
        """Return the reason why the broker stores no messages for clients, for the answer to them."""
        return f"the broker is a slave with the id {self.broker_id}: send to the master of its name"
