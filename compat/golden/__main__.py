"""Create the golden stores again: `python -m compat.golden`. Needs a JDK and Maven, and takes about two minutes."""

from __future__ import annotations

import io
import re
import shutil
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from compat.apache.apache import HOST_V6, ApacheBroker, ApacheNameServer, dump_store
from compat.apache.maven import java_and_maven_found
from compat.golden.life import ROLL_WINDOW_S, Life, Sender, live, live_on_ipv6, now_ms
from wheelmq.net.sync_connection import SyncConnection

FOLDER: Final = Path(__file__).parents[2] / "tests" / "golden"
ENDS: Final = ("stopped", "killed")
INDEX_SLOTS: Final = 100
SMALL: Final = {
    "mappedFileSizeCommitLog": 1 << 16,
    "mappedFileSizeConsumeQueue": 20 * 50,
    "mappedFileSizeTimerLog": 52 * 10 + 16,
    "maxHashSlotNum": INDEX_SLOTS,
    "maxIndexNum": 4 * INDEX_SLOTS,
    "timerRollWindowSlot": ROLL_WINDOW_S,
    "transactionOpBatchInterval": 100,
    "flushConsumerOffsetInterval": 500,
    "maxMessageSize": 1 << 14,
}
LEFT_OUT: Final = ("lock", "abort.bak")


def main() -> int:
    if reason := java_and_maven_found():
        print(f"cannot run: {reason}", file=sys.stderr)
        return 2
    for end in ENDS:
        with tempfile.TemporaryDirectory(prefix="golden-") as folder:
            path = make(Path(folder), end)
        print(f"{path}: {path.stat().st_size} bytes")
    return 0


def make(home: Path, end: str) -> Path:
    """Let Apache write a store and end as `end` says. Returns the archive of the store."""
    store = home / "store"
    config = {**SMALL, "storePathRootDir": store}
    with ApacheNameServer(home / "names") as names:
        with ApacheBroker(home / "six", names.address, config=config, host=HOST_V6) as broker:
            with closing(SyncConnection(broker.address)) as link:
                first = Sender(link, 1000)
                live_on_ipv6(first)
            broker.stop()
        with ApacheBroker(home / "four", names.address, config=config) as broker:
            with closing(SyncConnection(broker.address)) as link:
                second = Sender(link, 0)
                live(second)
            if end == "killed":
                broker.kill()
            ended_ms = now_ms()
            if end == "stopped":
                broker.stop()
    life = Life(end, ended_ms, first.sent + second.sent, _offsets(store))
    shutil.copytree(store, home / "read")
    dump = dump_store(home / "read", INDEX_SLOTS, home=home)
    return _pack(end, store, life, dump)


def _offsets(store: Path) -> dict[str, dict[int, int]]:
    """Return the table in consumerOffset.json. Apache writes its numbers bare, also as keys."""
    text = (store / "config" / "consumerOffset.json").read_text()
    table = re.sub(r"(\d+):", r'"\1":', text)
    return msgspec.convert(msgspec.json.decode(table)["offsetTable"], dict[str, dict[int, int]], strict=False)


def _pack(end: str, store: Path, life: Life, dump: str) -> Path:
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"apache-{end}.tar.xz"
    with tarfile.open(path, "w:xz", preset=9) as archive:
        archive.add(store, "store", filter=_plain)
        for name, data in (("life.json", msgspec.json.encode(life)), ("dump.jsonl", dump.encode())):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Remove owners and times, and leave out files that only a running broker needs."""
    if Path(info.name).name in LEFT_OUT:
        return None
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    return info


if __name__ == "__main__":
    sys.exit(main())
