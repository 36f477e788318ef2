"""The files that our broker writes in a fixed scenario. `python -m tests.golden.ours` rewrites their hashes.

A changed hash is a changed format, or a record that is written at another time. docs/formats must say so, and
Apache must still read the store.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Final

from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

EXPECTED: Final = Path(__file__).parent / "ours.txt"
LEFT_OUT: Final = ("lock", "abort", "topics.json", "subscriptionGroup.json", "pipelineKey.json")
"""The JSON files of the broker's state grow with it. The key is random."""
BATCH: Final = b"".join(
    (22 + 2).to_bytes(4, "big") + bytes(8) + (3).to_bytes(4, "big") + (2).to_bytes(4, "big") + body + bytes(2)
    for body in (b"b0", b"b1", b"b2")
)


def live(folder: Path) -> dict[str, str]:
    """Send one message of each kind over two starts and many turns. Returns the SHA-256 of each file, by path."""
    with BrokerHarness(folder) as harness:
        model = PipelineModel(harness)
        harness.send("T", b"plain", properties={"UNIQ_KEY": "U1", "KEYS": "a b", "TAGS": "t"})
        harness.send("T", b"large" * 2000, properties={"UNIQ_KEY": "U2"}, f=0x301)
        harness.ask(harness.send_command("T", BATCH, properties={"UNIQ_KEY": "U3"}, m=True))
        six = harness.connect(b"\x20\x01\x0d\xb8" + bytes(11) + b"\1")
        harness.send("T", b"six", properties={"UNIQ_KEY": "U4"}, delay_ms=1500, connection=six)
        harness.send("T", b"level", properties={"UNIQ_KEY": "U5", props.DELAY: "2"})
        for seconds in (2, 9, 25, 300):
            harness.send("T", b"block", properties={"UNIQ_KEY": f"B{seconds}", props.DELAY_IN_SECONDS: str(seconds)})
        for i in range(20):
            harness.send("T", b"timer", properties={"UNIQ_KEY": f"V{i}"}, delay_ms=700 + 2700 * i)
        harness.advance(3000, model.work)
        harness.send("T", b"cancel", delay_ms=50_000, properties={"UNIQ_KEY": "U6", props.TIMER_DEL_UNIQKEY: "T+V19"})
        harness.restart(clean=False)
        harness.broker.parts.groups.get("G")
        harness.ask_code(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=3)
        model = PipelineModel(harness)
        harness.advance(30_000, model.work)
        harness.stop()
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in LEFT_OUT)
    return {_name(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def _name(path: Path) -> str:
    """Return the path. For the index file, which is named by local time, return its folder."""
    return str(path.parent if path.parent.name == "index" else path)


def text(hashes: dict[str, str]) -> str:
    return "".join(f"{value} {path}\n" for path, value in hashes.items())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        EXPECTED.write_text(text(live(Path(temporary) / "store")))
