"""Names keep the three integers apart: LogPosition, QueueOffset, Millis."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from .sources import Module, modules

APACHES = {"formats/wire/codes.py"}
"""Names of fields on the wire are Apache's."""

FUNCTIONS_OF_TIME = re.compile(r"_ms$|_time$|_?millis$|^due_of$|^park$")
"""Names of functions that give Millis: by the unit, or by saying that it is a time."""


def annotated(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """(name, type, line) of every annotated variable, field and argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            target = node.target
            name = (
                target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""
            )
            yield name, ast.unparse(node.annotation), node.lineno
        elif isinstance(node, ast.arg) and node.annotation is not None:
            yield node.arg, ast.unparse(node.annotation), node.lineno


def has(kind: str, annotation: str) -> bool:
    return re.fullmatch(rf"(Final\[)?{kind}(\])?( \| None)?", annotation) is not None


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_milliseconds_say_so(module: Module) -> None:
    wrong = [
        f"{name}:{line}" for name, kind, line in annotated(module.tree) if has("Millis", kind) and not _is_millis(name)
    ]
    assert wrong == []


def _is_millis(name: str) -> bool:
    return name.lower().endswith("_ms") or name == "ms"


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_log_positions_and_times_are_no_offsets(module: Module) -> None:
    wrong = [
        f"{name}:{line}"
        for name, kind, line in annotated(module.tree)
        if (has("LogPosition", kind) or has("Millis", kind)) and "offset" in name.lower()
    ]
    assert wrong == []


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_queue_offsets_are_no_positions(module: Module) -> None:
    wrong = [
        f"{name}:{line}"
        for name, kind, line in annotated(module.tree)
        if has("QueueOffset", kind) and re.search(r"position|_ms$", name.lower())
    ]
    assert wrong == []


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_nothing_is_named_as_the_offset_of_a_log(module: Module) -> None:
    """Apache's words for a log position (physical offset, commit log offset) are used for none of ours."""
    if module.name in APACHES:
        return
    names = {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
    names |= {node.arg for node in ast.walk(module.tree) if isinstance(node, ast.arg)}
    wrong = [name for name in names if re.search(r"(log|phy|physic|byte|file|position|time|ms)_?offset", name.lower())]
    assert wrong == []


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_functions_that_give_milliseconds_say_so(module: Module) -> None:
    wrong = [
        node.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.returns is not None
        and has("Millis", ast.unparse(node.returns))
        and not FUNCTIONS_OF_TIME.search(node.name)
    ]
    assert wrong == []
