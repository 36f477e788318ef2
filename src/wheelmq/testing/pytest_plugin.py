"""The fixture `wheelmq_broker` for pytest: a running TestBroker for one test.

def test_reminder(wheelmq_broker):
    app = Reminders(wheelmq_broker.namesrv)
    app.remind("A-17", after=timedelta(days=3))
    wheelmq_broker.advance(days=3)
    ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from wheelmq.testing.broker import TestBroker


@pytest.fixture
def wheelmq_broker(wheelmq_broker_settings: dict[str, Any]) -> Iterator[TestBroker]:
    """Return a running broker with an empty store. It stops after the test."""
    from wheelmq.testing.broker import TestBroker

    with TestBroker(**wheelmq_broker_settings) as broker:
        yield broker


@pytest.fixture
def wheelmq_broker_settings() -> dict[str, Any]:
    """Return the settings of `wheelmq_broker`. Override this fixture to change them."""
    return {}
