"""The check whether the store takes messages now, without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from wheelmq.broker.admission.failed_puts import failed_put_answer
from wheelmq.broker.admission.put_status import CODES, PutFailed, PutStatus
from wheelmq.broker.admission.sends import Admission
from wheelmq.broker.admission.store_health import RETRY_MS, StoreHealth
from wheelmq.broker.answers import PeerError
from wheelmq.broker.replication.role import Role
from wheelmq.broker.settings import BrokerSettings
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.observe.ticks import Ticks
from wheelmq.store.journal import BACKLOG_MAX, Journal
from wheelmq.system.disk import StoreRemoved
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk

ROOT = Path("/store")


class Parts:
    """An admission, and the parts that it asks."""

    def __init__(self, **chosen: object) -> None:
        self.settings = BrokerSettings.of(store_path=ROOT, **chosen)
        self.clock, self.disk = ManualClock(), SimulatedDisk()
        self.health, self.ticks = StoreHealth(self.clock), Ticks(self.clock)
        self.journal = Journal()
        self.admission = Admission(
            self.settings,
            Role(self.settings, self.disk, StorePaths(ROOT)),
            self.health,
            self.clock,
            self.ticks,
            self.disk,
            StorePaths(self.settings.store.path),
            self.journal,
        )

    def status(self) -> PutStatus | None:
        """Return the status of a put that fails now; None if it may go on."""
        try:
            self.admission.check_put()
        except PutFailed as failed:
            return failed.status
        return None


def test_a_store_takes_messages() -> None:
    parts = Parts()
    assert parts.admission.rejection() is None and parts.admission.takes_sends and parts.status() is None


def test_a_failed_write_rejects_messages_for_a_moment() -> None:
    parts = Parts()
    parts.health.reject_sends("the disk is full")
    assert parts.admission.rejection() == "the disk is full" and not parts.admission.takes_sends
    assert parts.status() is PutStatus.SERVICE_NOT_AVAILABLE
    parts.clock.advance(RETRY_MS)
    parts.health.poll(parts.clock.monotonic_ms())
    assert parts.status() is None and parts.admission.takes_sends


def test_a_failure_rejects_messages_for_ever() -> None:
    parts = Parts()
    parts.health.fail(OSError("broken"))
    parts.clock.advance(RETRY_MS)
    parts.health.poll(parts.clock.monotonic_ms())
    assert parts.status() is PutStatus.SERVICE_NOT_AVAILABLE and not parts.admission.takes_sends


def test_a_nearly_full_disk_rejects_messages_from_the_next_check_on() -> None:
    parts = Parts()
    parts.disk.used = 0.91
    assert parts.status() is None
    parts.admission.check_disk()
    assert parts.admission.rejection() == "the disk is 91 % full"


def test_too_many_records_that_wait_for_replicas_reject_messages() -> None:
    parts = Parts()
    parts.journal.count = BACKLOG_MAX - 1
    assert parts.status() is None
    parts.journal.count = BACKLOG_MAX
    assert parts.status() is PutStatus.SERVICE_NOT_AVAILABLE and "wait for replicas" in (
        parts.admission.rejection() or ""
    )


def test_the_reason_to_stop_comes_first() -> None:
    parts = Parts(broker_id=1)
    parts.health.reject_sends("the disk is full")
    assert (parts.admission.rejection() or "").startswith("the broker is a slave with the id 1")
    parts.admission.stop()
    assert parts.admission.rejection() == "the broker is stopping"


def test_an_old_round_rejects_puts_only() -> None:
    parts = Parts()
    parts.ticks.begin()
    parts.clock.advance(1001)
    assert parts.status() is PutStatus.OS_PAGE_CACHE_BUSY
    assert parts.admission.rejection() is None


def test_a_broker_opens_for_sends_at_a_time() -> None:
    now_ms = ManualClock().now_ms()
    parts = Parts(start_accept_send_request_time_stamp=now_ms + 10)
    assert not parts.admission.takes_sends and parts.status() is None
    with pytest.raises(PeerError, match="broker unable to service, until"):
        parts.admission.check_open()
    parts.clock.advance(10)
    parts.admission.check_open()
    assert parts.admission.takes_sends


def unread() -> float:
    raise AssertionError("the disk is read for a text that does not name it")


@pytest.mark.parametrize("status", PutStatus)
def test_the_answer_to_a_failed_put_has_a_detail(status: PutStatus) -> None:
    parts = Parts()
    share = (lambda: 0.5) if status is PutStatus.SERVICE_NOT_AVAILABLE else unread
    plain = failed_put_answer(PutFailed(status), parts.settings, share, parts.health)
    detailed = failed_put_answer(PutFailed(status, ValueError("why")), parts.settings, share, parts.health)
    assert plain.code == detailed.code == CODES[status]
    assert detailed.remark == f"{plain.remark} (why)"


def test_a_request_may_have_an_answer_of_its_own() -> None:
    parts = Parts()
    failed = PutFailed(PutStatus.SERVICE_NOT_AVAILABLE, "why", code=ResponseCode.SYSTEM_ERROR, remark="mine")
    answer = failed_put_answer(failed, parts.settings, unread, parts.health)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "mine")


def test_a_removed_store_has_a_text_of_its_own() -> None:
    parts = Parts()
    parts.health.fail(StoreRemoved(2, "removed", str(ROOT)))
    failed = PutFailed(PutStatus.SERVICE_NOT_AVAILABLE)
    answer = failed_put_answer(failed, parts.settings, unread, parts.health)
    assert answer.remark == "service not available now: message store has been shut down."
