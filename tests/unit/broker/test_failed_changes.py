"""Changes of topics and groups whose write fails, while other changes of the same entries wait."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from wheelmq.broker.state import table_file
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.store import config_file
from wheelmq.testing.harness import Ask, BrokerHarness
from wheelmq.testing.workers import HeldWorker

BROKEN = OSError(errno.EIO, "broken")


class Admin:
    """Submits changes to a broker whose table writes run when the test says."""

    def __init__(self, folder: Path) -> None:
        self.tables = HeldWorker()
        self.harness = BrokerHarness(folder, tables=self.tables)

    def put_group(self, retries: int) -> Ask:
        body = json.dumps({"groupName": "g", "retryMaxTimes": retries}).encode()
        return self._submit(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)

    def delete_group(self) -> Ask:
        return self._submit(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g", cleanOffset=False)

    def forbid(self, readable: bool) -> Ask:
        return self._submit(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, group="g", topic="T", readable=readable)

    def put_topic(self, queues: int) -> Ask:
        fields = {"readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
        return self._submit(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="T", defaultTopic="TBW102", **fields)

    def delete_topic(self) -> Ask:
        return self._submit(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")

    def send(self) -> Ask:
        return self.harness.submit(self.harness.send_command("T", b"sent"))

    def _submit(self, code: RequestCode, body: bytes = b"", **fields: object) -> Ask:
        return self.harness.submit(Command(code=code, ext=headers.texts(**fields), body=body))

    def begin_write(self, *, fails: bool = False) -> None:
        """Run the write of all changes up to now, but do not report its end yet."""
        self.harness.advance(table_file.WRITE_INTERVAL_MS)
        with mock.patch.object(config_file, "save", wraps=config_file.save) as save:
            save.side_effect = BROKEN if fails else None
            self.tables.work()
        assert save.called

    def end_write(self) -> None:
        self.tables.report()
        self.harness.tick()

    def write(self, *, fails: bool = False) -> None:
        self.begin_write(fails=fails)
        self.end_write()

    def retries(self) -> int | None:
        found = self.harness.broker.parts.groups.known("g")
        return None if found is None else found.retry_max_times

    def queues(self) -> int | None:
        found = self.harness.broker.parts.topics.get("T")
        return None if found is None else found.read_queue_nums


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Admin]:
    made = Admin(tmp_path)
    with made.harness:
        yield made


def codes(*asked: Ask) -> list[int | None]:
    return [None if one.answer is None else one.answer.code for one in asked]


FAILED = ResponseCode.SYSTEM_ERROR


class TestGroups:
    def test_a_later_change_survives_a_failed_one(self, admin: Admin) -> None:
        first = admin.put_group(1)
        admin.begin_write(fails=True)
        second = admin.put_group(2)
        admin.end_write()
        assert codes(first, second) == [FAILED, None] and admin.retries() == 2
        admin.write()
        assert codes(second) == [0]
        admin.harness.restart(clean=False)
        assert admin.retries() == 2

    def test_two_changes_in_one_failed_write_are_both_reverted(self, admin: Admin) -> None:
        stored = admin.put_group(7)
        admin.write()
        asked = admin.put_group(1), admin.put_group(2)
        admin.write(fails=True)
        assert codes(stored, *asked) == [0, FAILED, FAILED] and admin.retries() == 7

    def test_two_failed_changes_restore_the_value_before_both(self, admin: Admin) -> None:
        first = admin.put_group(1)
        admin.begin_write(fails=True)
        second = admin.put_group(2)
        admin.end_write()
        admin.write(fails=True)
        assert codes(first, second) == [FAILED, FAILED] and admin.retries() is None

    def test_a_later_change_that_fails_keeps_the_stored_one(self, admin: Admin) -> None:
        first = admin.put_group(1)
        admin.begin_write()
        second = admin.put_group(2)
        admin.end_write()
        admin.write(fails=True)
        assert codes(first, second) == [0, FAILED] and admin.retries() == 1

    def test_a_deletion_survives_a_failed_change(self, admin: Admin) -> None:
        admin.put_group(1)
        admin.begin_write(fails=True)
        deleted = admin.delete_group()
        admin.end_write()
        admin.write()
        assert codes(deleted) == [0] and admin.retries() is None

    def test_a_failed_deletion_restores_a_group_that_a_client_names_meanwhile(self, admin: Admin) -> None:
        admin.put_group(7)
        admin.write()
        deleted = admin.delete_group()
        assert admin.harness.broker.parts.groups.get("g") is not None and admin.retries() == 16
        admin.write(fails=True)
        assert codes(deleted) == [FAILED] and admin.retries() == 7

    def test_a_failed_change_of_forbidden_topics_keeps_the_stored_ones(self, admin: Admin) -> None:
        groups = admin.harness.broker.parts.groups
        first = admin.forbid(readable=False)
        admin.begin_write(fails=True)
        second = admin.forbid(readable=False)
        admin.end_write()
        assert codes(first, second) == [FAILED, None] and groups.is_forbidden("g", "T")
        admin.write()
        assert codes(second) == [0] and groups.is_forbidden("g", "T")
        both = admin.forbid(readable=True), admin.forbid(readable=True)
        admin.write(fails=True)
        assert codes(*both) == [FAILED, FAILED] and groups.is_forbidden("g", "T")

    def test_a_failed_deletion_keeps_topics_forbidden_meanwhile(self, admin: Admin) -> None:
        admin.put_group(7)
        admin.write()
        admin.delete_group()
        admin.begin_write(fails=True)
        forbidden = admin.forbid(readable=False)
        admin.end_write()
        admin.write()
        assert codes(forbidden) == [0] and admin.retries() == 7
        assert admin.harness.broker.parts.groups.is_forbidden("g", "T")


class TestTopics:
    def test_two_changes_in_one_failed_write_are_both_reverted(self, admin: Admin) -> None:
        admin.put_topic(7)
        admin.write()
        asked = admin.put_topic(1), admin.put_topic(2)
        admin.write(fails=True)
        assert codes(*asked) == [FAILED, FAILED] and admin.queues() == 7

    def test_an_equal_later_change_survives_a_failed_one(self, admin: Admin) -> None:
        admin.put_topic(1)
        admin.begin_write(fails=True)
        deleted, again = admin.delete_topic(), admin.put_topic(1)
        admin.end_write()
        admin.write()
        assert codes(deleted, again) == [0, 0] and admin.queues() == 1

    def test_a_change_survives_the_failed_creation_of_its_topic_by_a_send(self, admin: Admin) -> None:
        sent = admin.send()
        admin.begin_write(fails=True)
        changed = admin.put_topic(8)
        admin.end_write()
        assert admin.queues() == 8
        admin.write()
        assert codes(sent, changed) == [FAILED, 0] and admin.queues() == 8

    @pytest.mark.parametrize("is_created", [True, False])
    def test_a_failed_change_of_a_topic_that_a_send_creates_is_reverted(self, admin: Admin, is_created: bool) -> None:
        sent = admin.send()
        admin.begin_write(fails=not is_created)
        changed = admin.put_topic(8)
        admin.end_write()
        admin.write(fails=True)
        assert codes(sent, changed) == ([0, FAILED] if is_created else [FAILED, FAILED])
        assert admin.queues() == (4 if is_created else None)


def test_a_change_beyond_the_limit_of_waiting_changes_is_rejected(admin: Admin) -> None:
    with mock.patch.object(table_file, "WAITERS_MAX", 0):
        asked = admin.put_group(1), admin.put_topic(1), admin.forbid(readable=False)
        admin.harness.tick()
    assert codes(*asked) == [ResponseCode.SYSTEM_BUSY] * 3
    assert admin.retries() is admin.queues() is None
    assert not admin.harness.broker.parts.groups.is_forbidden("g", "T")
