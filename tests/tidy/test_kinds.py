"""A module finds the generation of a message in delay.api.Generations, and does not compare the kind of a stream."""

from __future__ import annotations

import ast

import pytest

from .sources import Module, each_module, modules

KINDS = {"KIND_LEVEL", "KIND_BLOCK", "KIND_TIMER", "TIMER_STREAM"}
QUESTIONS = {"is_level", "stream_kind"}

WITHOUT_OBJECTS = ("formats/", "delay/fast/")
"""The format of origins, and kernels, which have no objects."""

ALLOWED = {
    "backup/reader.py": "picks the messages of blocks among the settled ones, many at once",
    "backup/tally.py": "counts many messages by kind at once",
    "broker/block_queries.py": "an offset of a message id is a log position or the origin of a message in a block",
    "broker/replication/truncation.py": "picks the messages of blocks among those that removed records settle",
    "delay/blocks/recover.py": "picks its streams among those of the done bits",
    "delay/blocks/row_check.py": "checks many rows of a turn at once",
    "delay/blocks/settlement.py": "picks its rows among those of the journal, many at once",
    "delay/levels/queues.py": "picks its streams among those of the journal and the armed messages",
    "delay/prefetch.py": "drops references of blocks, many at once",
    "delay/snapshots.py": "drops the messages of blocks among those that the journal settles, many at once",
    "delay/timer/recovery/resume.py": "picks the streams of the commit log among those of the snapshot",
    "delay/timer/row_check.py": "checks many rows of a turn at once",
    "delay/timer/timer.py": "gives recovery the queues of the commit log before the table has its blocks",
    "testing/invariants.py": "checks the broker, and so uses none of its decisions",
    "testing/simulation/oracle.py": "checks the broker, and so uses none of its decisions",
}
"""The other modules that compare kinds, with the reason."""


def comparisons(tree: ast.Module) -> list[int]:
    """Return the lines that compare the kind of a stream."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            names = {part.id for part in (node.left, *node.comparators) if isinstance(part, ast.Name)}
        elif isinstance(node, ast.Call):
            names = {node.func.id} & QUESTIONS if isinstance(node.func, ast.Name) else set()
        else:
            continue
        found += [node.lineno] * bool(names & (KINDS | QUESTIONS))
    return found


@each_module
def test_a_module_asks_the_table(module: Module) -> None:
    if not module.name.startswith(WITHOUT_OBJECTS) and module.name not in ALLOWED:
        assert comparisons(module.tree) == []


@pytest.mark.parametrize("name", ALLOWED)
def test_an_exception_is_still_needed(name: str) -> None:
    (module,) = [module for module in modules() if module.name == name]
    assert comparisons(module.tree)


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("stream == TIMER_STREAM", [1]),
        ("origins >> KIND_SHIFT != KIND_BLOCK", [1]),
        ("x = 1 if is_level(stream) else 0", [1]),
        ("by_kind[stream_kind(stream)]", [1]),
        ("table = {KIND_LEVEL: levels}", []),
        ("KIND_LEVEL <= kind <= KIND_TIMER", [1]),
        ("origin_of(TIMER_STREAM, 0) in done", []),
        ("kind == KIND_BLOCKS", []),
    ],
)
def test_the_rule_finds_comparisons(code: str, lines: list[int]) -> None:
    assert comparisons(ast.parse(code)) == lines
