"""The last lines of a log."""

from __future__ import annotations

from pathlib import Path

from wheelmq.cli.log_tail import LINE_CHARS_MAX, LINES_MAX, READ_BYTES, last_lines, tail_text


def test_the_last_lines_of_the_current_process_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    start = path.stat().st_size
    assert last_lines(path, start) == [] and tail_text(path, start) == ""
    with path.open("a") as log:
        log.writelines(f"line {i}\n\n" for i in range(20))
    assert last_lines(path, start) == [f"line {i}" for i in range(20 - LINES_MAX, 20)]
    assert tail_text(path, start).splitlines()[1:3] == [f"    the end of {path}:", "    | line 14"]


def test_lines_that_repeat_a_known_reason_are_left_out(tmp_path: Path) -> None:
    """A part logs the reason of its end, and `wheelmq up` prints it before the lines of the log."""
    path = tmp_path / "log"
    path.write_text("a first line\n2026-11-28 ERROR wheelmq no users\nadd one\n")
    assert last_lines(path, known="no users\nadd one") == ["a first line"]
    path.write_text("2026-11-28 ERROR wheelmq no users\n")
    assert tail_text(path, known="no users") == ""


def test_a_replaced_log_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("new\n")
    assert last_lines(path, 1000) == ["new"]


def test_a_missing_log_has_no_lines(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "log") == []


def test_long_lines_and_long_logs_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * READ_BYTES + b"\nlast \xff\n" + b"y" * 1000)
    assert last_lines(path) == ["last \ufffd", "y" * (LINE_CHARS_MAX - 3) + "..."]
