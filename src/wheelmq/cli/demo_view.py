"""The output of the demonstration: a line for each event, and a live line that a terminal draws in place.

A line costs less than a table, so drawing does not delay the receipt of messages that the demonstration measures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final, TextIO

from wheelmq.cli.demo_messages import BOUNDS_MS, DemoMessages

LOOK_S: Final = 0.2
"""Interval of the live line on a terminal."""
PLAIN_S: Final = 5.0
"""Interval of the same line in a file or a pipe."""
AGAIN_S: Final = 30.0
"""Interval of a note that repeats, such as that of a long start."""
BAR: Final = 10
"""Characters of the longest bar."""
_CLEAR: Final = "\r\x1b[K"


class DemoScreen:
    """Prints events with the seconds since the start. On a terminal, the last line is live."""

    def __init__(self, out: TextIO, elapsed_s: Callable[[], float], *, columns: int = 0) -> None:
        """`columns` is the width of the terminal; 0 for a file or a pipe."""
        self._out = out
        self._elapsed_s = elapsed_s
        self.columns = columns
        self._shown_s = 0.0
        self._noted_s: dict[str, float] = {}
        self._has_live_line = False

    def say(self, text: str) -> None:
        """Print an event."""
        self._print(f"{self._elapsed_s():5.1f} s  {text}")

    def note(self, text: str) -> None:
        """Print the first line of a text about a part, and the same line again only after AGAIN_S."""
        first, now_s = text.partition("\n")[0], self._elapsed_s()
        if now_s - self._noted_s.get(first, -AGAIN_S) >= AGAIN_S:
            self._noted_s[first] = now_s
            self.say(first)

    def print_lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._print(line)

    def show(self, line: str) -> None:
        """Draw the live line again. A file or a pipe gets the line every PLAIN_S seconds."""
        if self.columns:
            self._out.write(_CLEAR + line[: self.columns - 1])
            self._out.flush()
            self._has_live_line = True
        elif self._elapsed_s() - self._shown_s >= PLAIN_S:
            self._shown_s = self._elapsed_s()
            self.say(line)

    def close(self) -> None:
        """Remove the live line."""
        if self._has_live_line:
            self._out.write(_CLEAR)
            self._out.flush()
            self._has_live_line = False

    def _print(self, line: str) -> None:
        self.close()
        self._out.write(line + "\n")
        self._out.flush()


def make_screen(out: TextIO, elapsed_s: Callable[[], float]) -> DemoScreen:
    """Return a screen with a live line if `out` is a terminal that can draw in place."""
    if not out.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return DemoScreen(out, elapsed_s)
    try:
        columns = os.get_terminal_size(out.fileno()).columns
    except OSError:
        columns = 80
    return DemoScreen(out, elapsed_s, columns=columns or 80)


def live_line(messages: DemoMessages, pipeline: str, *, columns: int = 0) -> str:
    """Return the histogram of the stream's lateness in one line, with bars if they fit into `columns` characters.

    A narrow terminal gets the line without the histogram. `columns` is 0 for a file or a pipe.
    """
    total = sum(messages.histogram)
    if not total:
        return f"Waiting for the first message of the stream. {pipeline}."
    with_bars, plain = (_histogram(messages, total, pipeline, has_bars=has_bars) for has_bars in (True, False))
    if len(with_bars) < columns:
        return with_bars
    if columns and len(plain) >= columns:
        return f"{total:,} arrived, worst {messages.worst_ms} ms late | {pipeline}"
    return plain


def _histogram(messages: DemoMessages, total: int, pipeline: str, *, has_bars: bool) -> str:
    names = [*(f"<={bound}" for bound in BOUNDS_MS), f">{BOUNDS_MS[-1]}"]
    cells = [
        _cell(name, count, total, has_bars=has_bars)
        for name, count in zip(names, messages.histogram, strict=True)
        if count or name == names[-1]
    ]
    return f"ms late: {' '.join(cells)} | {total:,} arrived, worst {messages.worst_ms} ms | {pipeline}"


def _cell(name: str, count: int, total: int, *, has_bars: bool) -> str:
    bar = "#" * -(-BAR * count // total) if has_bars and count else ""
    share = 100 * count / total
    return " ".join(filter(None, (name, bar, "0" if not count else "<1%" if share < 1 else f"{share:.0f}%")))
