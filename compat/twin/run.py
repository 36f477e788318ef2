"""Send the same random sequences of requests to Apache RocketMQ's broker and to WheelMQ's, and compare the answers.

python -m compat.twin [--seed N] [--count N] [--apache HOST:PORT] [--ours HOST:PORT] [--replay SEQUENCE]

Brokers that are not named are started. A sequence with different answers is shortened as far as possible. It is
printed with the command that replays it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compat.twin.compare import alike, normal
from compat.twin.generate import sequence
from compat.twin.known import leaves_behind, meant
from compat.twin.link import Link
from compat.twin.steps import Answer, Filling, Step, read, written
from wheelmq.broker.handlers import HANDLERS

CONFIG = {"recallMessageEnable": "true", "enablePropertyFilter": "true"}
SERVED = frozenset(int(code) for code in HANDLERS)
SHRINK_RUNS_MAX = 60
SYSTEM_BUSY = 2
BUSY_TIMES = 50
"""Retries for a broker that answers "busy", which it does on a busy machine."""
DIFFERING_MAX = 10
"""The run ends after this number of differing sequences."""

_serial = itertools.count()


@dataclass(frozen=True)
class Difference:
    """The first step of a sequence with different answers, and their comparable parts."""

    step: Step
    apaches: Any
    ours: Any

    @property
    def kind(self) -> str:
        """A text that is equal for differences of the same request and kind."""
        said = [
            one if not isinstance(one, dict) else {**one, "body": bool(one["body"]), "told": ""}
            for one in (self.apaches, self.ours)
        ]
        return f"{self.step.code} {said}"


@dataclass(frozen=True)
class Found:
    """A shortened sequence with different answers."""

    steps: list[Step]
    difference: Difference

    def text(self) -> str:
        step = self.difference.step
        return (
            f"step {step.number}, code {step.code}, of {[one.code for one in self.steps]}\n"
            f"  Apache: {_short(self.difference.apaches)}\n  ours:   {_short(self.difference.ours)}\n"
            f"  python -m compat.twin --replay {shlex.quote(written(self.steps))}"
        )


def _short(said: Any) -> str:
    text = json.dumps(said, ensure_ascii=False)
    return text if len(text) < 1500 else f"{text[:1500]}..."


class Twins:
    """Two brokers that get the same requests."""

    def __init__(self, apache: str, ours: str) -> None:
        self._addresses = (apache, ours)
        self._pool = ThreadPoolExecutor(2)
        self.asked = 0
        """Number of requests with compared answers."""
        self.explained: dict[str, int] = {}
        """Number of intended differences by their reason."""

    def close(self) -> None:
        self._pool.shutdown()

    def first_difference(self, steps: Sequence[Step]) -> Difference | None:
        """Send a sequence to both brokers. Returns None if all answers are equal, or differ as intended.

        After an intended difference the brokers may be in different states. Such a difference ends the sequence.
        """
        prefix = f"Tw{os.getpid():x}{int(time.time()) & 0xFFFFFF:x}x{next(_serial)}"
        now_ms = int(time.time() * 1000)
        links = [Link(address) for address in self._addresses]
        answers: list[dict[int, Answer]] = [{}, {}]
        fillings = [Filling(prefix, now_ms, given) for given in answers]
        try:
            for step in steps:
                said = list(self._pool.map(lambda at, step=step: _ask(links[at], step, fillings[at]), range(2)))
                for given, answer in zip(answers, said, strict=True):
                    if answer is not None:
                        given[step.number] = answer
                apaches, ours = (normal(step, answer, filling) for answer, filling in zip(said, fillings, strict=True))
                self.asked += 1
                if not alike(apaches, ours):
                    known = meant(step, apaches, ours)
                    if known is None:
                        return Difference(step, apaches, ours)
                    self.explained[known.reason] = self.explained.get(known.reason, 0) + 1
                    if known.ends:
                        return None
                elif leaves_behind(step, ours):
                    return None
        finally:
            for link in links:
                link.close()
        return None

    def shrunk(self, steps: list[Step], difference: Difference) -> Found:
        """Return a shorter sequence that differs in the same request and, by its codes, in the same way."""
        kept = [step for step in steps if step.number <= difference.step.number]
        runs = 0
        at = len(kept) - 2
        while at >= 0 and runs < SHRINK_RUNS_MAX:
            shorter = kept[:at] + kept[at + 1 :]
            runs += 1
            again = self.first_difference(shorter)
            if again is not None and again.step.number == difference.step.number:
                kept, difference = shorter, again
            at -= 1
        return Found(kept, difference)


def _ask(link: Link, step: Step, filling: Filling) -> Answer | None:
    answer = link.ask(filling.frame(step), step.number, is_silent=step.is_silent)
    for _ in range(BUSY_TIMES):
        if answer is None or answer.get("code") != SYSTEM_BUSY:
            break
        answer = link.ask(filling.frame(step), step.number)
    if step.is_silent or (answer is not None and answer.get("code") == 0):
        link.settle()
    return answer


@contextlib.contextmanager
def brokers(apache: str | None, ours: str | None) -> Iterator[Twins]:
    """Yield the two brokers. Brokers that are not named are started."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wheelmq-twin-")))
        if apache is None:
            from compat.apache.apache import ApacheBroker, ApacheNameServer

            names = stack.enter_context(ApacheNameServer(home / "ns"))
            apache = stack.enter_context(ApacheBroker(home / "broker", names.address, config=CONFIG)).address
        if ours is None:
            from tests.running import up

            pairs = [option for name, value in CONFIG.items() for option in ("--set", f"{name}={value}")]
            running = stack.enter_context(up(home / "ours", "--no-pipeline", *pairs))
            stack.callback(running.stop)
            ours = str(running.found["broker"])
        twins = Twins(apache, ours)
        stack.callback(twins.close)
        yield twins


def run(twins: Twins, first_seed: int, count: int) -> list[Found]:
    """Run the sequences of `count` seeds. Returns the differing sequences, one of each kind."""
    found: list[Found] = []
    kinds: dict[str, int] = {}
    for seed in range(first_seed, first_seed + count):
        steps = sequence(seed, SERVED)
        difference = twins.first_difference(steps)
        if difference is None:
            continue
        if difference.kind in kinds:
            kinds[difference.kind] += 1
            continue
        kinds[difference.kind] = 1
        found.append(twins.shrunk(steps, difference))
        print(f"DIFFER seed {seed}: {found[-1].text()}", flush=True)
        if len(found) == DIFFERING_MAX:
            print(f"{DIFFERING_MAX} sequences differ: the rest is left out")
            break
    alike = sum(kinds.values()) - len(found)
    if alike:
        print(f"{alike} more differ in the ways that are shown")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the first sequence")
    parser.add_argument("--count", type=int, default=200, help="how many sequences")
    parser.add_argument("--apache", help="HOST:PORT of a broker of Apache's that runs, with " + str(CONFIG))
    parser.add_argument("--ours", help="HOST:PORT of a broker of ours that runs")
    parser.add_argument("--replay", type=read, metavar="SEQUENCE", help="run this sequence alone")
    options = parser.parse_args()
    with brokers(options.apache, options.ours) as twins:
        if options.replay is not None:
            difference = twins.first_difference(options.replay)
            if difference is not None:
                print(Found(options.replay, difference).text())
            print("they differ" if difference else "they agree")
            return 1 if difference else 0
        found = run(twins, options.seed, options.count)
        for why, times in sorted(twins.explained.items()):
            print(f"meant, {times} times: {why}")
        told = f"{twins.asked} requests in {options.count} sequences from seed {options.seed} on"
        print(f"{told}, {len(found)} sequences differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
