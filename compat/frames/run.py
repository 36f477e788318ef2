"""Run the cases against a broker.

python -m compat.frames --target apache|HOST:PORT [--only PATTERN] [--show]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compat.frames.cases import CASES, CLOSED, Case, Expected, send
from compat.frames.client_cases import CLIENT_CASES
from compat.frames.consume_cases import CONSUME_CASES
from compat.frames.filter_cases import FILTER_CASES
from compat.frames.send_cases import MORE_SEND_CASES
from compat.frames.wire import Outcome, Peer

CONFIG = {"recallMessageEnable": "true", "enablePropertyFilter": "true"}
"""Settings of Apache's broker. WheelMQ enables the first by default."""

ANSWER_S = 5
"""How long a required answer may take."""

_serial = itertools.count()


@dataclass(frozen=True)
class Checked:
    case: Case
    outcome: Outcome
    agrees: bool
    broker_lives: bool


def check(address: str, case: Case, expected: Expected) -> Checked:
    """Send a case's bytes, then a valid send over another connection."""
    topic = f"F{int(time.time() * 1000) % 10**9}x{next(_serial)}"
    with Peer(address) as peer:
        data = case.data(topic)
        outcome = Outcome()
        for part in [data] if isinstance(data, bytes) else data:
            peer.send(part(outcome.answers) if callable(part) else part)
            more = peer.outcome(answers=case.answers) if isinstance(data, bytes) else peer.outcome(wait_s=ANSWER_S)
            outcome = Outcome(outcome.answers + more.answers, more.closed)
    agrees = outcome.closed and not outcome.answers if expected == CLOSED else outcome.codes == expected
    agrees = agrees and _says(outcome, case.says)
    with Peer(address) as other:
        other.send(send("FramesAlive"))
        lives = other.outcome(wait_s=5).codes == [0]
    return Checked(case, outcome, agrees and (expected == CLOSED or not outcome.closed), lives)


def _says(outcome: Outcome, said: Mapping[str, str]) -> bool:
    """Return whether the last answer has these fields."""
    if not said:
        return True
    last = outcome.answers[-1] if outcome.answers else {}
    fields = last.get("extFields") or {}
    for name, expected in said.items():
        if name == "remark":
            good = str(last.get("remark")).startswith(expected)
        elif name == "body":
            good = re.search(expected, last.get("body", b"").decode("latin-1")) is not None
        else:
            good = fields.get(name) == expected
        if not good:
            return False
    return True


def run_cases(address: str, *, ours: bool, only: str = "") -> Iterator[Checked]:
    """Check every case. With `ours`, use the expectations for WheelMQ if they differ."""
    for case in (*CASES, *FILTER_CASES, *MORE_SEND_CASES, *CONSUME_CASES, *CLIENT_CASES):
        if re.search(only, case.name):
            expected = case.ours if ours and case.ours is not None else case.expected
            yield check(address, case, expected)


@contextlib.contextmanager
def target(name: str) -> Iterator[str]:
    """Yield the address of the broker under test. Apache's is started."""
    if name != "apache":
        yield name
        return
    from compat.apache.apache import ApacheBroker, ApacheNameServer

    with (
        tempfile.TemporaryDirectory() as home,
        ApacheNameServer(Path(home) / "ns") as names,
        ApacheBroker(Path(home) / "broker", names.address, config=CONFIG) as broker,
    ):
        yield broker.address


def _told(answer: dict[str, Any]) -> str:
    """Return the content of an answer without its code."""
    body = answer["body"].decode("latin-1")
    fields = answer.get("extFields") or {}
    return " ".join(str(part) for part in (answer.get("remark"), fields, body) if part)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--show", action="store_true", help="print every case, not only those that disagree")
    options = parser.parse_args()
    failed = count = 0
    with target(options.target) as address:
        for checked in run_cases(address, ours=options.target != "apache", only=options.only):
            count += 1
            good = checked.agrees and checked.broker_lives
            failed += not good
            if options.show or not good:
                said = [told for answer in checked.outcome.answers[-1:] if (told := _told(answer))]
                print(
                    f"{'ok    ' if good else 'DIFFER'} {checked.case.name}: {checked.outcome.text()}"
                    f" (expected {checked.case.expected}) {' '.join(said)[:700]}"
                    f"{'' if checked.broker_lives else ' AND THE BROKER DOES NOT ANSWER ANY MORE'}",
                    flush=True,
                )
    print(f"{count} cases, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
