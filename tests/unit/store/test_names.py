"""A log file counts only when its name is on disk, because its acknowledged messages must be found again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from wheelmq.testing.disk import Call
from wheelmq.testing.harness import BrokerHarness


@pytest.mark.parametrize("killed", [False, True], ids=["goes on", "is killed"])
def test_a_failed_sync_of_the_folder_loses_no_acknowledged_message(tmp_path: Path, killed: bool) -> None:
    """The next log file is made, and the sync of its folder fails. The file is then written all the same."""
    with BrokerHarness(tmp_path, flush_mode="SYNC_FLUSH", log_file_bytes=64 << 10) as harness:
        for _ in range(2):
            assert harness.send("T", bytes(20_000)).code == 0
        harness.disk.fail_call(1, OSError(errno.EIO, "broken"), [Call.SYNC_FOLDER])
        assert harness.send("T", bytes(25_000)).code != 0
        if killed:
            harness.restart(clean=False)
        harness.advance(1000)
        sent = [b"%d" % i * 20_000 for i in range(3)]
        assert [harness.send("T", body).code for body in sent] == [0, 0, 0]
        harness.cut_power(keep=0.0)
        harness.start()
        assert harness.bodies("T")[-3:] == sent
