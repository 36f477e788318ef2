"""The broker's settings by all their names."""

from __future__ import annotations

from typing import Final

from wheelmq.broker.settings import BrokerSettings
from wheelmq.config.auth_keys import AUTH_KEYS
from wheelmq.config.broker_keys import BROKER_KEYS
from wheelmq.config.net_keys import CLIENT_KEYS, SERVER_KEYS
from wheelmq.config.schema import Schema, by_name
from wheelmq.config.store_keys import STORE_KEYS
from wheelmq.config.tls_keys import TLS_KEYS

BROKER: Final = Schema(BrokerSettings, by_name(BROKER_KEYS, STORE_KEYS, SERVER_KEYS, CLIENT_KEYS, AUTH_KEYS, TLS_KEYS))
