"""A broker process on a real disk that fills: a tmpfs of a few megabytes, in a mount namespace."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.running import START_DEADLINE_S, STOP_DEADLINE_S, wheelmq
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.sync_connection import SyncConnection

DISK_BYTES = 24 << 20
LOG_FILE_BYTES = 4 << 20
DEADLINE_S = 20.0
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")

SETTINGS = {
    "log_file_bytes": LOG_FILE_BYTES,
    "message_index_enable": False,
    "timer_slots": 3600,
    "timer_roll_window_slots": 1800,
    "timer_log_file_bytes": 1 << 20,
    "disk_space_warning_level_ratio": 100,  # to the last byte
}

IN_NAMESPACE = 'mount -t tmpfs -o size="$1" none "$2" && shift 2 && exec "$@"'


def reason_for_skip() -> str | None:
    """Return the reason why such a disk is not possible; None if it is."""
    try:
        subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"], check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        return f"no tmpfs can be mounted in a namespace of one's own: {error}"
    return None


class OnSmallDisk:
    """A broker on the small disk, and the disk as the broker sees it."""

    def __init__(self, process: subprocess.Popen[str], address: str, folder: Path) -> None:
        self.process = process
        self.link = SyncConnection(address, timeout_s=DEADLINE_S)
        self.disk = Path(f"/proc/{process.pid}/root{folder}")

    def send(self, body: bytes, delay_ms: int | None = None) -> int:
        """Send to queue 0 of T. Returns the code of the answer."""
        pairs = {} if delay_ms is None else {props.TIMER_DELAY_MS: str(delay_ms)}
        fields = {"a": "p", "b": "T", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 0, "h": 0, "j": 0, "k": False}
        ext = headers.texts(**fields, m=False, i=props.encode(pairs).decode())
        return self.link.call(Command(code=RequestCode.SEND_MESSAGE_V2, ext=ext, body=body)).code

    def stored(self) -> int:
        """Return the number of messages in queue 0 of T."""
        ext = headers.texts(topic="T", queueId=0)
        return int(self.link.call(Command(code=RequestCode.GET_MAX_OFFSET, ext=ext)).ext["offset"])

    def rejection(self) -> str | None:
        """Return the broker's reason for rejecting sends."""
        said = json.loads(bytes(self.link.call(Command(code=RequestCode.WMQ_METRICS)).body))
        text: str | None = said["refusal"]
        return text

    def pull(self, offset: int) -> bytes:
        """Return the records from a queue offset on."""
        fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": offset, "maxMsgNums": 1}
        more = {"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
        ext = headers.texts(**fields, **more)
        return bytes(self.link.call(Command(code=RequestCode.PULL_MESSAGE, ext=ext)).body)

    def until(self, holds: Callable[[], bool]) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not holds():
            assert self.process.poll() is None, f"the broker ended with {self.process.returncode}"
            assert time.monotonic() < end_s
            time.sleep(0.02)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OnSmallDisk]:
    reason = reason_for_skip()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path / "disk"
    folder.mkdir()
    flags = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    command = wheelmq("broker", "--home", str(folder), "--port", "0", "--json", *flags)
    namespace = [*UNSHARE, "sh", "-c", IN_NAMESPACE, "sh", str(DISK_BYTES), str(folder)]
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen([*namespace, *command], stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline() or '{"event": "nothing"}')
            assert said["event"] == "listening", (tmp_path / "errors").read_text()
            running = OnSmallDisk(process, said["address"], folder)
            yield running
            running.link.close()
        finally:
            process.terminate()
            process.wait(STOP_DEADLINE_S)


@pytest.mark.timeout(START_DEADLINE_S + 120)
@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
def test_a_broker_on_a_full_disk_serves_reads_and_recovers_with_space(broker: OnSmallDisk) -> None:
    ballast = broker.disk / "ballast"
    ballast.write_bytes(bytes(6 << 20))
    assert broker.send(b"due while it is full", delay_ms=5000) == ResponseCode.SUCCESS
    codes = []
    while not codes or codes[-1] == ResponseCode.SUCCESS:
        codes.append(broker.send(bytes(100_000)))
        assert len(codes) < DISK_BYTES // 100_000
    assert codes[-1] == ResponseCode.SYSTEM_ERROR  # no file could be created
    assert broker.send(bytes(100_000)) == ResponseCode.SERVICE_NOT_AVAILABLE
    sent = len(codes) - 1
    left = broker.disk / "left"
    with left.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:  # to the last byte: from here on, a store into a hole raises SIGBUS
            file.write(bytes(4096))
    broker.until(lambda: broker.stored() == sent)
    for offset in range(sent):
        assert len(broker.pull(offset)) > 100_000
    broker.until(lambda: broker.rejection() is None)
    small = 0
    while broker.send(b"x") == ResponseCode.SUCCESS:  # the rest of the log's file
        small += 1
    broker.until(lambda: broker.rejection() is None)
    broker.until(lambda: broker.rejection() is not None)  # without sends, the timer finds no room
    assert broker.stored() == sent + small
    left.unlink()
    ballast.unlink()
    broker.until(lambda: broker.send(bytes(100_000)) == ResponseCode.SUCCESS)
    broker.until(lambda: broker.stored() == sent + small + 2)
    last = b"".join(broker.pull(offset) for offset in range(sent + small, sent + small + 2))
    assert last.count(b"due while it is full") == 1
