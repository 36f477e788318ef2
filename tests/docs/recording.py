"""Record a run of `wheelmq demo` as a picture of a terminal: python -m tests.docs.recording

The picture is an SVG file whose text moves up as in a terminal. A viewer without animations shows the end of the run.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

PICTURE: Final = Path(__file__).resolve().parents[2] / "docs" / "images" / "demo.svg"
COLUMNS: Final = 120
ROWS: Final = 28
CHARACTER_PX: Final = 7.3
ROW_PX: Final = 17
MARGIN_PX: Final = 14
INDENT: Final = " " * 9
"""The second row of a line begins below the text of the first one, after its time."""
PAUSE_S: Final = 1.2
"""Longest time between two lines of the picture. The run itself has longer ones while Spark starts."""
END_S: Final = 12.0
"""Time that the end of the run stays before the picture begins again."""
COLOURS: Final = (("KILLED", "#ff7b72"), ("RESULT:", "#7ee787"), ("COMPARISON", "#79c0ff"), ("$ ", "#79c0ff"))
TEXT: Final = "#d0d7de"


class Line(NamedTuple):
    at_s: float
    """Seconds since the start of the run."""
    text: str


def record(command: Sequence[str]) -> list[Line]:
    """Run `command`, and return the lines of its output. Raises CalledProcessError."""
    began_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [Line(time.monotonic() - began_s, text.rstrip("\n")) for text in process.stdout]
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command))
    return lines


def wrapped(lines: Sequence[Line]) -> list[Line]:
    """Return the lines in rows of at most COLUMNS characters. A row ends after a word; further rows are indented."""
    wrapper = textwrap.TextWrapper(COLUMNS, subsequent_indent=INDENT, drop_whitespace=False, break_on_hyphens=False)
    return [Line(at_s, row.rstrip()) for at_s, text in lines for row in wrapper.wrap(text) or [""]]


def paced(lines: Sequence[Line]) -> list[Line]:
    """Return the lines with the times at which the picture shows them: no pause is longer than PAUSE_S."""
    found: list[Line] = []
    shown_s = last_s = 0.0
    for at_s, text in lines:
        shown_s += min(PAUSE_S, at_s - last_s)
        last_s = at_s
        found.append(Line(shown_s, text))
    return found


def render(lines: Sequence[Line]) -> str:
    """Return the picture of `lines` as SVG."""
    shown = paced(wrapped(lines))
    length_s = shown[-1].at_s + END_S
    width, height = round(COLUMNS * CHARACTER_PX) + 2 * MARGIN_PX, ROWS * ROW_PX + 2 * MARGIN_PX
    steps = [
        f"{100 * line.at_s / length_s:.2f}%{{transform:translateY({-ROW_PX * (i + 1)}px)}}"
        for i, line in enumerate(shown)
    ]
    bottom = MARGIN_PX + ROWS * ROW_PX
    texts = [_text(line.text, bottom + ROW_PX * (i + 1) - 4) for i, line in enumerate(shown) if line.text]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
            "<title>A run of wheelmq demo</title>",
            "<style>",
            "text{font:12px ui-monospace,Menlo,Consolas,monospace;white-space:pre}",
            f"#lines{{transform:translateY({-ROW_PX * len(shown)}px);animation:run {length_s:.1f}s step-end infinite}}",
            "@keyframes run{0%{transform:none}" + "".join(steps) + "}",
            "</style>",
            f'<clipPath id="window"><rect x="0" y="{MARGIN_PX}" width="{width}" height="{ROWS * ROW_PX}"/></clipPath>',
            f'<rect width="{width}" height="{height}" rx="8" fill="#161b22"/>',
            '<g clip-path="url(#window)"><g id="lines">',
            *texts,
            "</g></g>",
            "</svg>",
            "",
        )
    )


def _text(text: str, y: int) -> str:
    colour = next((colour for word, colour in COLOURS if word in text[:20]), TEXT)
    return f'<text x="{MARGIN_PX}" y="{y}" fill="{colour}">{escape(text)}</text>'


def main() -> int:
    command = (sys.executable, "-m", "wheelmq", "demo")
    PICTURE.write_text(render([Line(0.0, "$ make demo"), *record(command)]))
    print(f"wrote {PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
