"""Docstrings, comments and pages are in plain English, and names are those of the field."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from . import prose
from .sources import modules

REPOSITORY = Path(__file__).parents[2]
PACKAGES = sorted({module.part for module in modules()})
PAGES = sorted(
    path.relative_to(REPOSITORY).as_posix()
    for place in ("*.md", "docs/**/*.md", "bench/*.md", "compat/*.md", "compat/*/*.md")
    for path in REPOSITORY.glob(place)
)
COLUMNS_MAX = 120

BANNED = re.compile(
    r"(?:^|_)(?:told|tell|anew|refus\w*|chores|desk|relief|offload|thinned|fate|handback|stir|hurry|look)(?:_|$)"
    r"|(?:Desk|Chores|Relief|Offload|Thinned|Fate|Refus\w*)$"
)
"""Names of functions and classes that the glossary replaced. Parts of names, so `lookup` and `outlook` pass."""
KEPT = {"Refused", "refused", "_refused"}
"""The public error of wheelmq.client, and the status of keys that Apache RocketMQ has and WheelMQ rejects."""


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_and_comments_are_plain(package: str) -> None:
    pieces = [
        piece for module in modules() if module.part == package for piece in prose.of_python(module.text, module.name)
    ]
    assert prose.problems(pieces) == []


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_plain(page: str) -> None:
    assert prose.problems(prose.of_markdown(REPOSITORY / page)) == []


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_pages_fit(page: str) -> None:
    lines = (REPOSITORY / page).read_text(encoding="utf-8").splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > COLUMNS_MAX] == []


def test_replaced_names_do_not_come_back() -> None:
    found = [
        f"{module.name}:{node.lineno} {node.name}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and BANNED.search(node.name)
        and node.name not in KEPT
    ]
    assert found == []


def test_no_two_classes_share_a_name() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{module.name}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


class TestMeasure:
    def test_a_word_above_its_rate_is_found(self) -> None:
        found = prose.problems(
            [prose.Piece("a.md:1", "The broker releases what is due, what is late and what is lost.")]
        )
        assert len(found) == 1 and found[0].startswith("what: 230.77 in 1,000 words")

    def test_a_stray_word_passes(self) -> None:
        assert prose.problems([prose.Piece("a.md:1", "The broker reports what it stored.")]) == []

    def test_sentences_without_a_subject_are_found(self) -> None:
        text = "What is due leaves. Whoever pulls gets it. Of these one is kept."
        assert "3 of 3 sentences have no subject" in prose.problems([prose.Piece("a.md:1", text)])[0]

    def test_long_sentences_are_found(self) -> None:
        assert "1 of 1 sentences have over 25 words" in prose.problems([prose.Piece("a.md:1", "word " * 26)])[0]

    def test_code_and_headings_of_a_page_are_left_out(self, tmp_path: Path) -> None:
        page = tmp_path / "a.md"
        page.write_text("# What\n\n```\nwhat is this\n```\none\ntwo\n\n- item\n| cell |\n")
        assert [(piece.place, piece.text) for piece in prose.of_markdown(page)] == [
            ("a.md:6", "one two"),
            ("a.md:9", "item"),
            ("a.md:10", "cell"),
        ]

    def test_texts_below_attributes_and_comments_count(self) -> None:
        source = '"""Module."""\nA = 1\n"""Below."""\nB = 2  # beside\n'
        assert [piece.text for piece in prose.of_python(source, "a.py")] == ["Module.", "Below.", "beside"]
