"""The shared part of the benchmarks: their options, the order of rounds, and the table that they print.

A benchmark measures one target at a time and returns figures by name. Rounds run Apache, WheelMQ, Apache, WheelMQ.
The table shows medians, and the range of the rounds if there are several.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.machine import machine, stolen_percent
from bench.targets import Target, WheelMQ, prepare, rivals

Figures = dict[str, float]


@dataclass(frozen=True)
class Metric:
    """One row of a table, and the goal for WheelMQ: a value, or a ratio to its rival's."""

    key: str
    label: str
    at_most: float | None = None
    at_least: float | None = None
    ratio_at_least: float | None = None
    ratio_at_most: float | None = None
    below: float | None = None
    """Like at_most, but exclusive."""

    @property
    def wanted(self) -> str:
        parts = {
            "<= {:g}": self.at_most,
            ">= {:g}": self.at_least,
            "< {:g}": self.below,
            ">= {:g}x": self.ratio_at_least,
            "<= {:g}x": self.ratio_at_most,
        }
        return ", ".join(text.format(value) for text, value in parts.items() if value is not None)

    def is_met(self, value: float | None, ratio: float | None) -> bool | None:
        """Return whether the goal is met; None if there is no goal or no value."""
        checks = [
            None if self.at_most is None or value is None else value <= self.at_most,
            None if self.at_least is None or value is None else value >= self.at_least,
            None if self.below is None or value is None else value < self.below,
            None if self.ratio_at_least is None or ratio is None else ratio >= self.ratio_at_least,
            None if self.ratio_at_most is None or ratio is None else ratio <= self.ratio_at_most,
        ]
        said = [check for check in checks if check is not None]
        return all(said) if said else None


def parser(
    module: str, text: str | None, *, rounds: int = 3, targets: Sequence[str] = ("Apache", "WheelMQ")
) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    made = argparse.ArgumentParser(
        prog=f"python -m bench.{module}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--short", action="store_true", help="less of everything: does it run, and roughly how fast")
    made.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    made.add_argument("--rounds", type=int, help=f"rounds of each target ({rounds}; 1 with --short)")
    made.add_argument("--only", choices=targets, help="measure this target alone")
    made.add_argument(
        "--home", type=Path, metavar="FOLDER", help="where stores are made (the system's temporary folder)"
    )
    made.set_defaults(rounds_usual=rounds)
    return made


def add_flush(made: argparse.ArgumentParser) -> None:
    """Add the option for the flush mode of both brokers."""
    made.add_argument("--flush", choices=("ASYNC_FLUSH", "SYNC_FLUSH"), default="ASYNC_FLUSH", help="(ASYNC_FLUSH)")


def measure_flushing(report: Report, options: argparse.Namespace, one: Callable[[Target], Figures]) -> None:
    """Do the same as `measure`, with the flush mode of the options.

    With SYNC_FLUSH, WheelMQ must be ahead of Apache.
    """
    if options.flush != "ASYNC_FLUSH":
        report.title += f", {options.flush}"
        report.metrics = [replace(m, ratio_at_least=1.0) if m.ratio_at_least else m for m in report.metrics]
    flush = {"flush_mode": options.flush}
    measure(report, options, one, settings=flush, apache={"flushDiskType": options.flush})


def parse(made: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options. From now on a SIGTERM ends this process cleanly, with all processes that it started."""
    options = made.parse_args(argv)
    if options.rounds is None:
        options.rounds = 1 if options.short else options.rounds_usual
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return options


@dataclass
class Report:
    """Figures of all rounds by target, in the order of the targets."""

    title: str
    metrics: Sequence[Metric]
    rival: str = "Apache"
    """The target to which the ratios compare WheelMQ."""
    figures: dict[str, list[Figures]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    before: dict[str, float] = field(default_factory=machine)

    def add(self, name: str, figures: Figures) -> None:
        self.figures.setdefault(name, []).append(figures)

    def medians(self, name: str) -> Figures:
        """Return the median of each figure over the rounds that have it."""
        rounds = self.figures.get(name, [])
        keys = dict.fromkeys(key for figures in rounds for key in figures)
        return {key: statistics.median([figures[key] for figures in rounds if key in figures]) for key in keys}

    def ratio(self, metric: Metric) -> float | None:
        """Return WheelMQ's median divided by its rival's."""
        ours, theirs = (self.medians(name).get(metric.key) for name in ("WheelMQ", self.rival))
        return ours / theirs if ours is not None and theirs else None

    def missed(self) -> list[str]:
        """Return the labels of the missed goals."""
        ours = self.medians("WheelMQ")
        return [m.label for m in self.metrics if m.is_met(ours.get(m.key), self.ratio(m)) is False]

    def text(self) -> str:
        names = list(self.figures)
        both = self.rival in names and "WheelMQ" in names
        head = ["", *names, *(["ratio"] if both else []), "wanted", ""]
        rows = [head]
        for metric in self.metrics:
            ratio = self.ratio(metric)
            met = metric.is_met(self.medians("WheelMQ").get(metric.key), ratio)
            row = [metric.label, *(self._cell(name, metric.key) for name in names)]
            row += [f"{ratio:.3g}" if ratio is not None else ""] if both else []
            rows.append([*row, metric.wanted, "" if met is None else "met" if met else "MISSED"])
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = [self.title]
        for row in rows:
            cells = [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
            lines.append("  " + "  ".join(cells).rstrip())
        rounds = max(map(len, self.figures.values()), default=0)
        after = machine()
        lines.append(
            f"  {self.before['cores']:.0f} cores, load {self.before['load']} before and {after['load']} after,"
            f" {stolen_percent(self.before, after):.1f} % of the processor stolen;"
            f" {f'medians of {rounds} rounds (least to most)' if rounds > 1 else 'one round'}"
        )
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def _cell(self, name: str, key: str) -> str:
        values = [figures[key] for figures in self.figures[name] if key in figures]
        if not values:
            return ""
        middle = number(statistics.median(values))
        return middle if len(values) == 1 else f"{middle} ({number(min(values))} to {number(max(values))})"

    def finish(self, path: Path | None) -> int:
        """Print the table, write the figures to `path`, and return the exit code."""
        print(self.text(), flush=True)
        if path is not None:
            medians = {name: self.medians(name) for name in self.figures}
            whole = {"title": self.title, "machine": self.before, "medians": medians, "rounds": self.figures}
            whole |= {"missed": self.missed(), "notes": self.notes}
            path.write_text(json.dumps(whole, indent=1) + "\n")
        return 0


def measure(
    report: Report,
    options: argparse.Namespace,
    one: Callable[[Target], Figures],
    *,
    settings: Mapping[str, object] | None = None,
    apache: Mapping[str, object] | None = None,
) -> None:
    """Run rounds of `one`, each on a fresh start of each target in turn.

    `settings` are those of WheelMQ's broker, `apache` those of Apache's.
    """
    targets, why = rivals()
    if options.only is not None:
        targets = [target for target in targets if target.name == options.only]
    elif why is not None:
        report.notes.append(why)
    if WheelMQ in targets:
        prepare()
    for i in range(options.rounds):
        for kind in targets:
            tell(f"{report.title}: {kind.name}, round {i + 1} of {options.rounds}")
            with kind(options.home, settings if kind is WheelMQ else apache) as target:
                report.add(kind.name, one(target))


def tell(text: str) -> None:
    """Print progress to the standard error."""
    print(text, file=sys.stderr, flush=True)


def spread(values: Any, name: str = "") -> Figures:
    """Return p50, p99 and max of `values`, as `p50_ms` or `p50_<name>_ms`; nothing if there are no values."""
    if not len(values):
        return {}
    p50, p99 = np.percentile(values, (50, 99)).tolist()
    middle = f"_{name}" if name else ""
    return {f"p50{middle}_ms": p50, f"p99{middle}_ms": p99, f"max{middle}_ms": float(np.max(values))}


def number(value: float) -> str:
    """Return a figure for people, with at least three significant digits and no superfluous ones."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
