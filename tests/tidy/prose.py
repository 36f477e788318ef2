"""Measure the prose of docstrings, comments and Markdown: rates of banned words, and long sentences.

The ceilings are those that well-kept Python projects keep: click and hypothesis exceed none of them.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

WORD: Final = re.compile(r"[A-Za-z']+")
WORDS_MAX: Final = 25
"""Words of a sentence that a reader understands at the first reading."""
LONG_SHARE_MAX: Final = 0.10
HEADLESS_SHARE_MAX: Final = 0.01
STRAY_MAX: Final = 2
"""Uses of a word, or headless sentences, that always pass. A short page has a high rate with one use."""

RATES_MAX: Final = {
    r"what": 1.5,
    r"told|tells?|telling": 0.7,
    r"stands?|stood": 0.3,
    r"behind": 0.3,
    r"anew|beside": 0.2,
    r"nobody|whoever|somebody": 0.3,
    r"so (?:many|long|much|far)\b(?! as)": 0.3,
    r"brought (?:to|into|in)|gives? (?:up|way)|let(?:s|ting)? go|has its time|put right|be mended|mended": 0.3,
}
"""Maximum uses per thousand words, by the pattern of the word."""
HEADLESS: Final = re.compile(r"(?:What|Who|Whoever|Whose|Of|By|Those|That which|Such)\b")
"""Openings of a sentence that leave its subject open."""
_SENTENCE_END: Final = re.compile(r"(?<=[.;:!?])\s+")
_NO_COMMENT: Final = ("#!", "# type", "# noqa")


@dataclass(frozen=True)
class Piece:
    """A paragraph, a row of a table, a docstring or a comment, and the place where it begins."""

    place: str
    text: str

    @property
    def words(self) -> int:
        return len(WORD.findall(self.text))

    def sentences(self) -> Iterator[str]:
        """Yield each sentence of at least four words."""
        for sentence in _SENTENCE_END.split(" ".join(self.text.split())):
            if len(WORD.findall(sentence)) >= 4:
                yield sentence


def of_python(text: str, name: str) -> Iterator[Piece]:
    """Yield the docstrings and comments of a module, texts below attributes included."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield Piece(f"{name}:{node.lineno}", node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(_NO_COMMENT):
            yield Piece(f"{name}:{token.start[0]}", token.string.lstrip("# "))


def of_markdown(path: Path) -> Iterator[Piece]:
    """Yield the paragraphs, list items and table rows of a page. Code blocks and headings are left out."""
    block: list[str] = []
    begin, is_code = 1, False
    for number, line in enumerate([*path.read_text(encoding="utf-8").splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
            continue
        if is_code:
            continue
        opens = line.lstrip().startswith(("|", "#", "-", "*"))
        if block and (opens or not line.strip()):
            yield Piece(f"{path.name}:{begin}", " ".join(block))
            block = []
        if opens:
            if not line.lstrip().startswith("#"):
                yield Piece(f"{path.name}:{number}", line.strip("|-* "))
        elif line.strip():
            begin = begin if block else number
            block.append(line.strip())


def problems(pieces: Iterable[Piece]) -> list[str]:
    """Return each ceiling that a text exceeds, with the places that exceed it."""
    pieces = list(pieces)
    words = sum(piece.words for piece in pieces)
    found = []
    for word, most in RATES_MAX.items():
        pattern = re.compile(rf"\b(?:{word})\b" if "\\b" not in word else rf"\b{word}", re.IGNORECASE)
        places = [piece.place for piece in pieces for _ in pattern.findall(piece.text)]
        if len(places) > STRAY_MAX and 1000 * len(places) > most * words:
            found.append(f"{word}: {1000 * len(places) / words:.2f} in 1,000 words, {most} at most: {places}")
    sentences = [(piece.place, sentence) for piece in pieces for sentence in piece.sentences()]
    long = [place for place, sentence in sentences if len(WORD.findall(sentence)) > WORDS_MAX]
    headless = [place for place, sentence in sentences if HEADLESS.match(sentence)]
    if len(long) > LONG_SHARE_MAX * len(sentences):
        found.append(f"{len(long)} of {len(sentences)} sentences have over {WORDS_MAX} words: {long}")
    if len(headless) > max(STRAY_MAX, HEADLESS_SHARE_MAX * len(sentences)):
        found.append(f"{len(headless)} of {len(sentences)} sentences have no subject at their beginning: {headless}")
    return found
