"""Settings as `--set` would choose them."""

from __future__ import annotations

from wheelmq.broker.schema import BROKER
from wheelmq.broker.settings import BrokerSettings
from wheelmq.config import sources
from wheelmq.config.schema import Given


def chosen(**pairs: str) -> BrokerSettings:
    """Return the settings that `pairs` choose. Raises ConfigError."""
    return BROKER.build({"store_path": Given("s", "")} | sources.read_pairs(pairs, BROKER).given)
