"""The picture of a run of the demo."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from tests.docs.recording import COLUMNS, INDENT, PAUSE_S, PICTURE, Line, paced, render, wrapped

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_the_picture_has_each_line_with_its_characters() -> None:
    lines = [Line(0.0, "ms late: <=1 50% & more"), Line(1.0, ""), Line(2.0, "RESULT: well")]
    assert texts(render(lines)) == ["ms late: <=1 50% & more", "RESULT: well"]


def test_a_long_line_takes_two_rows_and_divides_no_word() -> None:
    lines = wrapped([Line(0.0, f"  1.0 s  {'x' * (COLUMNS - 20)} all messages"), Line(0.5, "")])
    assert [line.text for line in lines] == [f"  1.0 s  {'x' * (COLUMNS - 20)} all", f"{INDENT}messages", ""]


def test_a_long_pause_is_shortened() -> None:
    lines = paced([Line(0.0, "a"), Line(0.5, "b"), Line(20.0, "c"), Line(20.1, "d")])
    assert [line.at_s for line in lines] == pytest.approx([0.0, 0.5, 0.5 + PAUSE_S, 0.6 + PAUSE_S])


def test_the_picture_of_the_readme_shows_a_run_without_a_loss() -> None:
    shown = "\n".join(texts(PICTURE.read_text()))
    for part in ("KILLED Spark's JVM", "RESULT:", "each once and none early. None was lost.", "COMPARISON"):
        assert part in shown
