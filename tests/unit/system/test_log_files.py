"""Log files that child processes write stay within a limit."""

from __future__ import annotations

import logging
from pathlib import Path
from unittest import mock

import pytest

from wheelmq.system import log_files
from wheelmq.system.log_files import bound
from wheelmq.system.rate_limited_log import EVERY_S, RateLimitedLog


def test_a_long_log_file_is_moved_and_its_writer_continues(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    assert not bound(path, 100)
    with path.open("ab", buffering=0) as writer:
        writer.write(b"a" * 100)
        assert not bound(path, 100)
        writer.write(b"b")
        assert bound(path, 100)
        writer.write(b"next")
        assert path.read_bytes() == b"next"
        assert (tmp_path / "broker.log.1").read_bytes() == b"a" * 99 + b"b"
        writer.write(b"c" * 1000)
        assert bound(path, 100)
    assert (tmp_path / "broker.log.1").read_bytes() == b"c" * 100
    assert sorted(one.name for one in tmp_path.iterdir()) == ["broker.log", "broker.log.1"]


def test_a_log_file_is_emptied_if_its_copy_has_no_room(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    path.write_bytes(b"a" * 101)
    with mock.patch.object(log_files, "_copy", side_effect=OSError(28, "No space left on device")):
        assert bound(path, 100)
    assert path.read_bytes() == b"" and [one.name for one in tmp_path.iterdir()] == ["broker.log"]


def test_a_rate_limited_log_counts_the_omitted_lines(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    log = RateLimitedLog(logging.getLogger("thinned"), lambda: now_s)
    for i in range(3):
        try:
            raise ValueError(i)
        except ValueError:
            log.exception("kind", "request %d", i)
        log.log(logging.ERROR, "other", "refused")
    now_s = EVERY_S
    log.log(logging.ERROR, "other", "refused")
    lines = [(one.levelname, one.getMessage(), bool(one.exc_info)) for one in caplog.records]
    assert lines == [
        ("ERROR", "request 0", True),
        ("ERROR", "refused", False),
        ("ERROR", "refused (and 2 times since the last such line)", False),
    ]
