"""Every request code is served, sent by the broker, or rejected with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from wheelmq.broker.admission.unsupported_codes import UNSUPPORTED
from wheelmq.broker.handlers import HANDLERS
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.nameserver.nameserver import NameServer
from wheelmq.nameserver.settings import NameServerSettings
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk

TO_CLIENTS = {
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
}
"""Requests of a broker to its clients. A client sends only those in PASSED_ON to a broker."""

PASSED_ON = {RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY}
"""Requests that an administrator's tool sends to the broker, and that the broker forwards."""


@pytest.fixture
def served(tmp_path: Path) -> set[int]:
    server = NameServer(NameServerSettings(kv_config_path=tmp_path / "kv"), disk=SimulatedDisk(), clock=ManualClock())
    return set(HANDLERS) | set(server.codes)


def test_every_code_is_served_sent_or_rejected(served: set[int]) -> None:
    homeless = [code.name for code in RequestCode if code not in served | TO_CLIENTS | set(UNSUPPORTED)]
    assert homeless == []


def test_no_code_is_both_served_and_rejected(served: set[int]) -> None:
    assert [code.name for code in UNSUPPORTED if code in served] == []
    assert [code.name for code in TO_CLIENTS - PASSED_ON if code in served or code in UNSUPPORTED] == []


def test_every_rejection_has_a_reason() -> None:
    for code, reason in UNSUPPORTED.items():
        assert isinstance(code, RequestCode)
        assert len(reason.split()) >= 4, code


def test_brokers_and_name_servers_share_no_code(tmp_path: Path) -> None:
    server = NameServer(NameServerSettings(kv_config_path=tmp_path / "kv"), disk=SimulatedDisk(), clock=ManualClock())
    assert not set(HANDLERS) & set(server.codes)
