"""The demonstration's criteria for success, its output and its folder."""

from __future__ import annotations

import asyncio
import io
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from wheelmq.cli import demo, main
from wheelmq.cli.demo_causes import Cause, Explained
from wheelmq.cli.demo_messages import DemoKind, DemoMessages, percentile
from wheelmq.cli.demo_report import DOCUMENTED, MEASURED, report
from wheelmq.cli.demo_run import DemoRun
from wheelmq.cli.demo_view import DemoScreen, live_line, make_screen
from wheelmq.cli.disk_use import DiskUse
from wheelmq.cli.stack import Stack, StackFailed, StackSettings
from wheelmq.client.message import ReceivedMessage
from wheelmq.client.results import CancelResult
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.pipeline.supervisor import PipelineState
from wheelmq.testing.clock import ManualClock

DUE = 1_800_000_000_000
FIGURES = Path(__file__).parents[3] / "docs" / "figures.md"


def received(body: str, lateness_ms: int, *, released_ms: int | None = None) -> ReceivedMessage:
    return ReceivedMessage(
        topic="T",
        body=body.encode(),
        properties={},
        message_id="",
        broker_name="b",
        queue_topic="T",
        queue_id=0,
        queue_offset=QueueOffset(0),
        log_position=LogPosition(0),
        born_ms=Millis(DUE - 1000),
        stored_ms=Millis(DUE + (lateness_ms if released_ms is None else released_ms)),
        received_ms=Millis(DUE + lateness_ms),
        reconsume_times=0,
        due_ms=Millis(DUE),
    )


def add_good_messages(messages: DemoMessages) -> None:
    """Add four messages of the burst, of which one is cancelled, and two of the stream. All of them have arrived."""
    for _ in range(4):
        messages.add(DemoKind.BURST, DUE)
    for _ in range(2):
        messages.add(DemoKind.STREAM, DUE)
    messages.of(DemoKind.BURST)[3].cancel_result = CancelResult.CANCELLED
    for body, lateness_ms in (("burst 0", 4), ("burst 1", 5), ("burst 2", 9), ("stream 0", 1), ("stream 1", 3)):
        messages.note_arrival(received(body, lateness_ms, released_ms=1))


@pytest.fixture
def messages() -> DemoMessages:
    made = DemoMessages()
    add_good_messages(made)
    return made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(DUE)


@pytest.fixture
def stack(tmp_path: Path, clock: ManualClock) -> Stack:
    return Stack(StackSettings(home=tmp_path), clock=clock, tell=lambda text: None)


@pytest.fixture
def run(stack: Stack, clock: ManualClock) -> DemoRun:
    """Return a run without problems."""
    made = DemoRun(stack, clock, lambda text: None)
    add_good_messages(made.messages)
    made.killed_ms, made.back_ms = DUE - 3000, DUE + 6000
    return made


class TestProblems:
    def test_a_good_run_has_none(self, run: DemoRun) -> None:
        assert run.problems() == []

    def test_a_lost_message_is_one(self, messages: DemoMessages) -> None:
        messages.add(DemoKind.STREAM, DUE)
        messages.add(DemoKind.STREAM, DUE)
        assert messages.problems() == ["2 messages did not arrive, such as number 2 of the stream"]

    def test_a_message_that_arrives_twice_is_one(self, messages: DemoMessages) -> None:
        messages.note_arrival(received("burst 1", 20))
        assert messages.problems() == ["1 message arrived more than once, such as number 1 of the burst"]

    @pytest.mark.parametrize(("lateness_ms", "released_ms"), [(-1, -1), (2, -1)])
    def test_an_early_message_is_one(self, messages: DemoMessages, lateness_ms: int, released_ms: int) -> None:
        messages.add(DemoKind.STREAM, DUE)
        messages.note_arrival(received("stream 2", lateness_ms, released_ms=released_ms))
        assert messages.problems() == ["1 message arrived early, such as number 2 of the stream"]

    def test_a_cancelled_message_that_arrives_is_one(self, messages: DemoMessages) -> None:
        messages.note_arrival(received("burst 3", 2))
        assert messages.problems() == ["1 message arrived although cancelled, such as number 3 of the burst"]

    @pytest.mark.parametrize("result", [CancelResult.NOT_FOUND, CancelResult.ALREADY_SETTLED, CancelResult.ACCEPTED])
    def test_a_failed_cancel_is_one(self, messages: DemoMessages, result: CancelResult) -> None:
        messages.of(DemoKind.BURST)[3].cancel_result = result
        assert messages.problems() == [f"1 message could not be cancelled ({result}), such as number 3 of the burst"]

    @pytest.mark.parametrize("body", ["stream 2", "burst x", "burst -1", "other 0", "\xff"])
    def test_a_message_that_was_not_sent_is_one(self, messages: DemoMessages, body: str) -> None:
        messages.note_arrival(received(body, 1))
        assert messages.problems() == ["1 message arrived that the demo had not sent"]

    def test_a_run_without_a_kill_or_without_a_pipeline_afterwards_has_one(self, run: DemoRun) -> None:
        run.back_ms = None
        [problem] = run.problems()
        assert problem.startswith("the pipeline made no turn within 120 s after the kill: see its log")
        run.killed_ms = None
        assert run.problems() == ["the run ended before Spark was killed"]


class TestMessages:
    def test_the_histogram_counts_the_stream_by_lateness(self, messages: DemoMessages) -> None:
        for lateness_ms in (0, 20, 21):
            body = messages.add(DemoKind.STREAM, DUE).body.decode()
            messages.note_arrival(received(body, lateness_ms))
        assert messages.histogram == [2, 0, 1, 0, 1, 1]
        assert messages.worst_ms == 21

    def test_late_messages_are_taken_once_and_after_their_time(self, messages: DemoMessages) -> None:
        late = messages.add(DemoKind.STREAM, DUE)
        messages.note_arrival(received("stream 2", 21))
        assert messages.take_late(DUE + 21) == []
        assert messages.take_late(DUE + 22) == [late]
        assert messages.take_late(DUE + 22) == []

    def test_cancelled_messages_are_not_awaited(self, messages: DemoMessages) -> None:
        assert messages.have_arrived(DemoKind.BURST)
        messages.add(DemoKind.BURST, DUE)
        assert not messages.have_arrived(DemoKind.BURST)

    def test_a_percentile_is_a_value(self) -> None:
        assert [percentile([1, 2, 3, 4], share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 3, 4, 4]
        assert percentile([], 0.5) == 0


class Metrics(Stack):
    """Returns prepared numbers of turns in order, while time passes. Its pipeline has died once."""

    def __init__(self, home: Path, clock: ManualClock, turns: list[int]) -> None:
        super().__init__(StackSettings(home=home), clock=clock, tell=lambda text: None)
        self._turns, self._time = turns, clock
        assert self.pipeline is not None
        self.pipeline.state = PipelineState.TURNING
        self.pipeline.child.deaths = 1

    async def metrics(self) -> dict[str, Any] | None:
        self._time.advance(10_000)
        turn = self._turns.pop(0) if len(self._turns) > 1 else self._turns[0]
        return {"pipeline": {"turn": turn}}


class TestPipeline:
    @pytest.mark.parametrize(("turns", "back_ms"), [([0, 0, 3], DUE + 30_000), ([0], None)])
    def test_the_run_waits_for_a_turn_after_the_kill(
        self, tmp_path: Path, clock: ManualClock, turns: list[int], back_ms: int | None
    ) -> None:
        run = DemoRun(Metrics(tmp_path, clock, turns), clock, lambda text: None)
        run.killed_ms = DUE
        asyncio.run(run.wait_for_pipeline())
        assert run.back_ms == back_ms
        assert run.turns == turns[-1]

    def test_turns_of_the_killed_driver_do_not_count(self, tmp_path: Path, clock: ManualClock) -> None:
        stack = Metrics(tmp_path, clock, [5])
        assert stack.pipeline is not None
        stack.pipeline.child.deaths = 0
        run = DemoRun(stack, clock, lambda text: None)
        run.killed_ms = DUE
        asyncio.run(run.wait_for_pipeline())
        assert run.back_ms is None

    def test_a_missing_jvm_cannot_be_killed(self, run: DemoRun) -> None:
        with pytest.raises(StackFailed, match="Spark's JVM does not run"):
            asyncio.run(run.kill(DUE + 1))

    def test_the_pipeline_restarts_from_the_kill_to_its_first_turn(self, run: DemoRun) -> None:
        times = (DUE - 3001, DUE - 3000, DUE + 5999, DUE + 6000)
        assert [run.is_restarting(time_ms) for time_ms in times] == [False, True, True, False]
        run.back_ms = None
        assert run.is_restarting(DUE + 9000)
        assert run.pipeline_text() == "Spark killed 3 s ago"


class TestReport:
    def test_a_good_run(self, run: DemoRun) -> None:
        text = "\n".join(report(run, [], []))
        assert "RESULT: 5 messages arrived, each once and none early. None was lost." in text
        assert (
            "burst     3 due at one millisecond: last one in its topic after 1 ms, at the consumer after 9 ms" in text
        )
        assert "stream    2 messages: lateness p50 3 ms, p99 3 ms, worst 3 ms at the consumer" in text
        assert "Spark     away for 9.0 s; 5 messages were due meanwhile" in text
        assert "cancels   1 of 1; none of these messages arrived" in text
        assert "no message was over 20 ms late" in text

    def test_a_failed_run_claims_nothing(self, run: DemoRun) -> None:
        lines = report(run, [], ["1 message did not arrive"])
        assert lines == ["", "The demo FAILED.", "  PROBLEM: 1 message did not arrive"]

    def test_a_late_message_has_its_explanation(self, run: DemoRun) -> None:
        text = "\n".join(report(run, [Explained(Cause.BROKER_WAITED, 34, 2, "the broker waited 30 ms")], []))
        assert "late      2 messages were up to 34 ms late: the broker waited 30 ms" in text
        assert "no message was over" not in text

    def test_its_figures_are_those_of_the_page(self) -> None:
        page = FIGURES.read_text()
        assert len(MEASURED) == 3
        for _, apache, wheelmq in MEASURED:
            assert f"| {apache} | {wheelmq} |" in page

    def test_its_settings_are_documented(self) -> None:
        page = (FIGURES.parent / "operations" / "timer-settings.md").read_text()
        assert all(text.rpartition("(")[2].rstrip(")") in page for text, *_ in DOCUMENTED)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestScreen:
    def test_a_pipe_gets_lines_at_intervals(self) -> None:
        out, times = io.StringIO(), iter([1.0, 4.9, 5.0, 5.0, 5.0, 9.9])
        screen = DemoScreen(out, lambda: next(times))
        screen.say("begin")
        for text in ("a", "b", "c"):
            screen.show(text)
        screen.close()
        assert out.getvalue() == "  1.0 s  begin\n  5.0 s  b\n"

    def test_a_terminal_draws_one_line_in_place(self) -> None:
        out = Terminal()
        screen = DemoScreen(out, lambda: 1.0, columns=6)
        screen.show("1234567")
        screen.say("end")
        assert out.getvalue() == "\r\x1b[K12345" + "\r\x1b[K" + "  1.0 s  end\n"

    def test_a_repeated_note_is_printed_after_a_while_without_the_end_of_a_log(self) -> None:
        out, times = io.StringIO(), iter((1.0, 1.0, 2.0, 2.0, 30.0, 31.0, 31.0))
        screen = DemoScreen(out, lambda: next(times))
        for text in ("starting", "died\n  | a log line", "starting", "starting"):
            screen.note(text)
        assert out.getvalue() == "  1.0 s  starting\n  2.0 s  died\n 31.0 s  starting\n"

    @pytest.mark.parametrize(("term", "columns"), [("xterm", 80), ("dumb", 0)])
    def test_only_a_terminal_is_live(self, monkeypatch: pytest.MonkeyPatch, term: str, columns: int) -> None:
        monkeypatch.setenv("TERM", term)
        assert make_screen(Terminal(), lambda: 0.0).columns == columns
        assert make_screen(io.StringIO(), lambda: 0.0).columns == 0

    def test_the_live_line_is_a_histogram(self, messages: DemoMessages) -> None:
        assert live_line(DemoMessages(), "Spark turns").startswith("Waiting for the first message")
        line = "ms late: <=1 50% <=5 50% >20 0 | 2 arrived, worst 3 ms | Spark turns"
        assert live_line(messages, "Spark turns") == line
        assert live_line(messages, "Spark turns", columns=81) == line.replace("50%", "##### 50%")
        assert live_line(messages, "Spark turns", columns=80) == line
        assert live_line(messages, "Spark turns", columns=60) == "2 arrived, worst 3 ms late | Spark turns"
        messages.histogram[0] = 1000
        assert live_line(messages, "", columns=80).startswith("ms late: <=1 ########## 100% <=5 # <1% >20 0 |")


class TestFolder:
    def test_a_folder_with_files_is_left_alone(self, tmp_path: Path) -> None:
        kept = tmp_path / "store"
        kept.mkdir()
        result = CliRunner().invoke(main, ["demo", "--home", str(tmp_path)])
        assert result.exit_code == 1
        assert "the demo changes no existing store: name an empty folder" in result.output
        assert list(tmp_path.iterdir()) == [kept]

    def test_a_full_disk_is_found_before_the_start(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(demo, "NEEDED_BYTES", 1 << 62)
        result = CliRunner().invoke(main, ["demo", "--home", str(tmp_path / "new")])
        assert result.exit_code == 1
        assert "MB free: name a folder on another disk with --home" in result.output
        assert not (tmp_path / "new").exists()

    def test_a_disk_on_which_the_broker_rejects_messages_is_found_before_the_start(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: DiskUse(1000 << 30, 920 << 30, 80 << 30))
        result = CliRunner().invoke(main, ["demo", "--home", str(tmp_path / "new")])
        assert result.exit_code == 1
        assert f"the disk of {tmp_path} is 92 % full: the broker rejects messages above 90 %" in result.output
        assert "free space there, or name a folder on another disk with --home" in result.output

    def test_a_folder_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.touch()
        result = CliRunner().invoke(main, ["demo", "--home", str(file / "home")])
        assert result.exit_code == 1
        assert f"{file} is no folder: name another folder with --home" in result.output
