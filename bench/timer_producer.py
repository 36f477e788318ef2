"""Apache's own benchmark of timers: unchanged TimerProducer and TimerConsumer, on the Java client 5.3.3.

They are those of rocketmq-example 5.5.0, because Maven Central does not have 5.3.3 of it. Since 5.3.3 they only
gained support for the option of the name server.

16 threads send 80,000 timers of 1 KiB for each of 4 seconds. All are sent in the two minutes before the first of
these seconds; the program fixes that. By default it has 100 such seconds, which is more than a small disk can hold.
So a broker takes three minutes.

The first rows are printed by the programs: the rate of the last nine seconds, every ten seconds, and the consumer's
delays of the whole run. The consumer's percentiles count each different delay in milliseconds once, not each message.
Lateness in the topic is read from the queues.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from bench.deliveries import read
from bench.report import Figures, Metric, Report, measure, parse, parser, spread, tell
from bench.room import make_room
from bench.targets import QUEUES, Target
from compat.apache.maven import MavenProject, java_and_maven_found
from tests.crash.records import TIMER_TOPIC
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.net.errors import Refused

PROJECT: Final = MavenProject(Path(__file__).parent / "example")
PACKAGE: Final = "org.apache.rocketmq.example.benchmark.timer"
HEAP: Final = "1g"
STARTS: Final = 3
START_DEADLINE_S: Final = 60.0
FAILED: Final = "Exception in thread"
TOPIC: Final = "BenchmarkTimer"
GROUP: Final = "benchmark_consumer"
THREADS: Final = 16
BODY_BYTES: Final = 1024
SECONDS: Final = 4
SECONDS_SHORT: Final = 2
EACH: Final = 5000
"""Timers of each thread for each second."""
EACH_SHORT: Final = 250
BYTES_EACH: Final = 3200
"""Bytes in the log, parked and released."""
LEAD_S: Final = 120.0
"""Time from the start of the program to the first second."""
PRINTS_S: Final = 10.0
SENDING_MAX_S: Final = 300.0
OUT_DEADLINE_S: Final = 240.0
LOOK_S: Final = 0.5
STALL_S: Final = 20.0
"""Time without new messages that ends the wait. A thread whose send fails waits for 3 s."""

METRICS: Final = [
    Metric("send_tps", "producer: Send TPS, median of what it prints", ratio_at_least=1),
    Metric("send_tps_max", "producer: Send TPS, most", ratio_at_least=1),
    Metric("send_rt_ms", "producer: Average RT, ms"),
    Metric("send_rt_max_ms", "producer: Max RT, ms"),
    Metric("send_failed", "producer: Send Failed + Response Failed", at_most=0),
    Metric("consume_tps", "consumer: Consume TPS, most", ratio_at_least=1),
    Metric("delay_ms", "consumer: Avg delayedDuration, ms", ratio_at_most=1),
    Metric("delay_50_ms", "consumer: delayDuration %50, ms", ratio_at_most=1),
    Metric("delay_99_ms", "consumer: delayDuration %99, ms", ratio_at_most=1),
    Metric("delay_max_ms", "consumer: Max delayedDuration, ms", ratio_at_most=1),
    Metric("timers", "timers"),
    Metric("missing", "not in the topic", at_most=0),
    Metric("early", "early", at_most=0),
    Metric("sent_late", "sent within 1 s of due"),
    Metric("p50_ms", "lateness in the topic p50, ms"),
    Metric("p99_ms", "lateness in the topic p99, ms"),
    Metric("max_ms", "lateness in the topic max, ms"),
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("timer_producer", __doc__, rounds=1)
    made.add_argument("--seconds", type=int, help=f"in which timers are due ({SECONDS}; {SECONDS_SHORT} with --short)")
    made.add_argument("--each", type=int, help=f"of each thread for a second ({EACH:,}; {EACH_SHORT} with --short)")
    options = parse(made, argv)
    seconds = options.seconds or (SECONDS_SHORT if options.short else SECONDS)
    each = options.each or (EACH_SHORT if options.short else EACH)
    if why := java_and_maven_found():
        raise SystemExit(f"Apache's programs need a JDK and Maven: {why}")
    title = f"Apache's TimerProducer, {THREADS} threads, {each:,} x {seconds} s each, {BODY_BYTES} B, and TimerConsumer"
    report = Report(title, METRICS)
    make_room(report, options, THREADS * seconds * each * BYTES_EACH)
    PROJECT.class_path()
    measure(report, options, lambda target: _produce(target, seconds, each))
    return report.finish(options.json)


def _produce(target: Target, seconds: int, each: int) -> Figures:
    wanted = THREADS * seconds * each
    words = ("-tc", str(THREADS), "-ms", str(BODY_BYTES), "-st", str(seconds), "-mt", str(each))
    with _program(target, "TimerConsumer", "Start receiving") as consumer:
        with _program(target, "TimerProducer", "Start sending", *words) as producer:
            parked = _until(lambda: _parked(target), wanted, SENDING_MAX_S)
            tell(f"{target.name}: {parked:,} of {wanted:,} sent")
            time.sleep(PRINTS_S)  # it prints the figures of the last sends
            sends = producer.lines("Send TPS")
        stored = _until(lambda: target.stored(TOPIC), parked, LEAD_S + seconds + OUT_DEADLINE_S)
        tell(f"{target.name}: {stored:,} are in the topic")
        consumed = _until(lambda: _consumed(target), stored, OUT_DEADLINE_S)
        tell(f"{target.name}: {consumed:,} are consumed")
        time.sleep(PRINTS_S)
        delays = consumer.lines("Consume TPS")
    target.end()
    found = read(target.store, TOPIC)
    waiting = read(target.store, TIMER_TOPIC)
    late_ms = found.store_ms - found.deliver_ms
    return {
        "timers": parked,
        "missing": wanted - len(found),
        "early": int((late_ms < 0).sum()),
        "sent_late": int(np.count_nonzero(waiting.deliver_ms - waiting.store_ms < 1000)),
        **spread(late_ms),
        **_of_sends(sends),
        **_of_delays(delays),
    }


def _parked(target: Target) -> int:
    """Return the number of accepted timers, which is the length of the timer queue."""
    return int(target.ask(RequestCode.GET_MAX_OFFSET, topic=TIMER_TOPIC, queueId=0).ext["offset"])


def _consumed(target: Target) -> int:
    """Return the committed offsets of the consumer's group, which it sends every five seconds."""
    count = 0
    for i in range(QUEUES):
        with contextlib.suppress(Refused):  # it has committed nothing yet
            answer = target.ask(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=GROUP, topic=TOPIC, queueId=i)
            count += int(answer.ext["offset"])
    return count


def _until(look: Callable[[], int], wanted: int, deadline_s: float) -> int:
    """Poll `look` until it reaches `wanted` or stops growing after its first growth. Returns the last number."""
    end_s = time.monotonic() + deadline_s
    grown_s, count = time.monotonic(), look()
    while count < wanted and time.monotonic() < end_s:
        time.sleep(LOOK_S)
        now = look()
        if now > count or not now:
            grown_s, count = time.monotonic(), now
        elif time.monotonic() > grown_s + STALL_S:
            break
    return count


# The programs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """A program of Apache, and the file with its output."""

    process: subprocess.Popen[bytes]
    path: Path

    def comes_up(self, up: str) -> bool:
        """Wait until the program prints `up`. Returns False if it prints a failure before that, or nothing."""
        end_s = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < end_s and not self.lines(FAILED):
            if self.lines(up):
                return True
            time.sleep(LOOK_S)
        return False

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def lines(self, begin: str) -> list[str]:
        """Return the printed lines that start with `begin`.

        Raises RuntimeError if the program has ended, which it never should.
        """
        text = self.path.read_text(errors="replace")
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.path.stem} ended with code {self.process.returncode}: {text[-2000:]}")
        return [line for line in text.splitlines() if line.startswith(begin)]


@contextmanager
def _program(target: Target, name: str, up: str, *words: str) -> Iterator[Program]:
    """Run a program of Apache with its own options until the block ends. It prints `up` when it has started.

    The program stops working at the first failed connection, but does not end. Then another one is started.
    """
    program = _start(target, name, up, words)
    try:
        yield program
    finally:
        program.end()


def _start(target: Target, name: str, up: str, words: Sequence[str]) -> Program:
    for i in range(STARTS):
        home = target.home / f"{name}-{i}"
        home.mkdir()
        options = [f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+AlwaysPreTouch", "-Djava.net.preferIPv4Stack=true"]
        options += ["-Duser.language=en", f"-Duser.home={home}", "-cp", PROJECT.class_path(), f"{PACKAGE}.{name}"]
        path = home / f"{name}.out"
        with path.open("wb") as out:
            process = subprocess.Popen(
                ["java", *options, "-n", target.namesrv, "-t", TOPIC, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=home,
                process_group=0,
            )
        program = Program(process, path)
        try:
            if program.comes_up(up):
                return program
        except BaseException:
            program.end()
            raise
        program.end()
        tell(f"{name} does not come up: {path.read_text(errors='replace')[:500]}")
    raise RuntimeError(f"{name} does not come up")


def _of_sends(lines: Sequence[str]) -> Figures:
    """Return the figures that the producer printed while it was sending."""
    busy = [line for line in lines if _number(line, "Send TPS") > 0]
    if not busy:
        return {}
    paces = [_number(line, "Send TPS") for line in busy]
    return {
        "send_tps": statistics.median(paces),
        "send_tps_max": max(paces),
        "send_rt_ms": statistics.median(_number(line, "Average RT") for line in busy),
        "send_rt_max_ms": _number(busy[-1], "Max RT"),
        "send_failed": _number(lines[-1], "Send Failed") + _number(lines[-1], "Response Failed"),
    }


def _of_delays(lines: Sequence[str]) -> Figures:
    """Return the figures that the consumer printed.

    Its averages cover nine seconds each, weighted by their messages.
    """
    busy = [line for line in lines if _number(line, "Consume TPS") > 0]
    if not busy:
        return {}
    paces = [_number(line, "Consume TPS") for line in busy]
    means = [_number(line, "Avg delayedDuration") for line in busy]
    return {
        "consume_tps": max(paces),
        "delay_ms": sum(mean * pace for mean, pace in zip(means, paces, strict=True)) / sum(paces),
        "delay_50_ms": _number(lines[-1], "%50"),
        "delay_99_ms": _number(lines[-1], "%99"),
        "delay_max_ms": _number(lines[-1], "Max delayedDuration"),
    }


def _number(line: str, name: str) -> float:
    """Return the number after a name. Apache prints NaN for an average of nothing."""
    found = re.search(re.escape(name) + r": +(-?[\d.]+|NaN)", line)
    if found is None:
        raise RuntimeError(f"no {name!r} in {line!r}")
    return float(found[1].rstrip("."))


if __name__ == "__main__":
    sys.exit(main())
