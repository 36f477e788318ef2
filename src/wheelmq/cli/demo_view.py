"""The output of the demonstration: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Final, Protocol, Self

import click

from wheelmq.cli.demo_run import TURN_PATIENCE_S, Planned, Run
from wheelmq.cli.stack import Stack
from wheelmq.cli.times import clock_text
from wheelmq.pipeline.supervisor import PipelineState
from wheelmq.system.clock import Clock

LOOK_S: Final = 0.2
PATIENT_AFTER_S: Final = 15.0
AWAITS_TURN: Final = f"All messages arrived. Waiting up to {TURN_PATIENCE_S:g} s for the first turn of the pipeline."


class DemoView(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, *, force: bool = False) -> None:
        """Show the changes."""
        ...

    def summarize(self, problems: list[str]) -> None:
        """Print the result."""
        ...


def make_view(run: Run, stack: Stack, clock: Clock, notes: list[str]) -> DemoView:
    return DemoTable(run, stack, clock, notes) if sys.stdout.isatty() else PlainView(run, stack, notes)


def parts(run: Run, stack: Stack) -> list[tuple[str, str]]:
    pipeline = stack.pipeline.state if stack.pipeline is not None else PipelineState.DOWN
    is_turning = run.metrics is not None and run.metrics["pipeline"]["is_turning"]
    state = "turning" if is_turning else "starting" if pipeline is PipelineState.TURNING else pipeline.value
    turns = run.metrics["pipeline"]["turn"] if run.metrics is not None else 0
    return [
        ("name server", _state(stack.namesrv.is_up, stack.namesrv_address)),
        ("broker", _state(run.metrics is not None, stack.broker_address)),
        ("pipeline", f"{state}, {turns} turns so far"),
        ("dashboard", _state(stack.dashboard_url is not None, str(stack.dashboard_url))),
    ]


def _state(is_up: bool, address: str) -> str:
    return f"up on {address}" if is_up else "starting"


def outcome(one: Planned, now_ms: int) -> str:
    if one.is_cancelled:
        return "arrived though cancelled" if one.arrivals_ms else "cancelled"
    if not one.arrivals_ms:
        return "waits" if now_ms < one.due_ms else "overdue"
    if len(one.arrivals_ms) > 1:
        return f"arrived {len(one.arrivals_ms)} times"
    return "early" if one.arrivals_ms[0] < one.due_ms else "arrived"


def summary(run: Run, problems: list[str]) -> list[str]:
    if problems:
        return [f"PROBLEM: {problem}" for problem in problems]
    late = sorted(one.lateness_ms for one in run.planned if one.lateness_ms is not None)
    return [
        f"{len(late)} of {len(late)} messages arrived, each once and none early; the cancelled one did not.",
        f"Lateness: {late[len(late) // 2]} ms in the middle, {late[-1]} ms at worst.",
        f"The pipeline on Spark made {run.turns} turns for them.",
    ]


class PlainView:
    def __init__(self, run: Run, stack: Stack, notes: list[str]) -> None:
        self._run = run
        self._stack = stack
        self._notes = notes
        self._told: set[str] = set()

    def __enter__(self) -> Self:
        click.echo("Starting name server, broker, the pipeline on Spark and a dashboard.")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def update(self, *, force: bool = False) -> None:
        if self._stack.dashboard_url is not None and "dashboard" not in self._told:
            self._told.add("dashboard")
            click.echo(f"The dashboard is at {self._stack.dashboard_url} while the demo runs.")
        for note in self._notes:
            click.echo(note)
        self._notes.clear()
        if self._run.cancel_result is not None and "sent" not in self._told:
            self._told.add("sent")
            click.echo(f"Sent {len(self._run.planned)} delayed messages and cancelled one of them.")
        for one in self._run.planned:
            if one.arrivals_ms and one.unique_key not in self._told:
                self._told.add(one.unique_key)
                when = f"due {clock_text(one.due_ms)}  arrived {clock_text(one.arrivals_ms[0])}"
                click.echo(f"{one.delay_ms / 1000:>4g} s  {when}  late {one.lateness_ms} ms")
        if self._run.awaits_turn and AWAITS_TURN not in self._told:
            self._told.add(AWAITS_TURN)
            click.echo(AWAITS_TURN)
        sys.stdout.flush()

    def summarize(self, problems: list[str]) -> None:
        for line in summary(self._run, problems):
            click.echo(line)


class DemoTable:
    """A table that is redrawn in place, only on `update`: drawing takes milliseconds from the receipt of messages."""

    def __init__(self, run: Run, stack: Stack, clock: Clock, notes: list[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._run = run
        self._stack = stack
        self._clock = clock
        self._notes = notes
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False)
        self._began_s = clock.monotonic()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def update(self, *, force: bool = False) -> None:
        from rich.console import Group
        from rich.text import Text

        shown: list[object] = [self._parts()]
        if self._run.planned:
            shown.append(self._messages())
        elif self._clock.monotonic() - self._began_s > PATIENT_AFTER_S:
            shown.append(Text("A first start takes longer: kernels are compiled, Spark's classes are read.", "dim"))
        if self._run.awaits_turn:
            shown.append(Text(AWAITS_TURN, "dim"))
        shown += [Text(note, "dim") for note in self._notes[-3:] if "DIED" in note or "died" in note]
        self._live.update(Group(*shown), refresh=True)  # type: ignore[arg-type]

    def _parts(self) -> object:
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for name, state in parts(self._run, self._stack):
            colour = "yellow" if state.startswith(("starting", "waiting", "down")) else "green"
            table.add_row(name, f"[{colour}]{state}[/]")
        return table

    def _messages(self) -> object:
        from rich.table import Table

        now_ms = self._clock.now_ms()
        table = Table(title="delayed messages")
        table.add_column("delay", justify="right")
        table.add_column("due")
        table.add_column("arrival")
        table.add_column("late, ms", justify="right")
        table.add_column("")
        for one in self._run.planned:
            arrival = clock_text(one.arrivals_ms[0]) if one.arrivals_ms else ""
            late = "" if one.lateness_ms is None else str(one.lateness_ms)
            table.add_row(f"{one.delay_ms / 1000:g} s", clock_text(one.due_ms), arrival, late, outcome(one, now_ms))
        return table

    def summarize(self, problems: list[str]) -> None:
        for line in summary(self._run, problems):
            self._console.print(line, style="bold red" if problems else "bold green", highlight=False)
