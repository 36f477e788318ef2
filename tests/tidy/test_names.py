"""Names distinguish the three integer types: LogPosition, QueueOffset, Millis."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .sources import Module, each_module

APACHES = {"formats/wire/codes.py"}
"""Fields on the wire have Apache's names."""

FUNCTIONS_OF_TIME = re.compile(r"_ms$|_time$|_?millis$|^due_of$|^park$")
"""Names of functions that return Millis. They contain the unit or a word for time."""


def annotated(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Yield (name, type, line) of every annotated variable, field and argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            target = node.target
            name = (
                target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""
            )
            yield name, ast.unparse(node.annotation), node.lineno
        elif isinstance(node, ast.arg) and node.annotation is not None:
            yield node.arg, ast.unparse(node.annotation), node.lineno


def is_of_type(kind: str, annotation: str) -> bool:
    return re.fullmatch(rf"(Final\[)?{kind}(\])?( \| None)?", annotation) is not None


@each_module
def test_names_of_milliseconds_end_in_ms(module: Module) -> None:
    wrong = [
        f"{name}:{line}"
        for name, kind, line in annotated(module.tree)
        if is_of_type("Millis", kind) and not _is_millis(name)
    ]
    assert wrong == []


def _is_millis(name: str) -> bool:
    return name.lower().endswith("_ms") or name == "ms"


@each_module
def test_no_log_position_or_time_is_named_offset(module: Module) -> None:
    wrong = [
        f"{name}:{line}"
        for name, kind, line in annotated(module.tree)
        if (is_of_type("LogPosition", kind) or is_of_type("Millis", kind)) and "offset" in name.lower()
    ]
    assert wrong == []


@each_module
def test_no_queue_offset_is_named_position(module: Module) -> None:
    wrong = [
        f"{name}:{line}"
        for name, kind, line in annotated(module.tree)
        if is_of_type("QueueOffset", kind) and re.search(r"position|_ms$", name.lower())
    ]
    assert wrong == []


@each_module
def test_no_name_calls_a_log_position_an_offset(module: Module) -> None:
    """Our names do not use Apache's words for a log position (physical offset, commit log offset)."""
    if module.name in APACHES:
        return
    names = {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
    names |= {node.arg for node in ast.walk(module.tree) if isinstance(node, ast.arg)}
    wrong = [name for name in names if re.search(r"(log|phy|physic|byte|file|position|time|ms)_?offset", name.lower())]
    assert wrong == []


@each_module
def test_functions_that_return_milliseconds_have_a_time_in_the_name(module: Module) -> None:
    wrong = [
        node.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.returns is not None
        and is_of_type("Millis", ast.unparse(node.returns))
        and not FUNCTIONS_OF_TIME.search(node.name)
    ]
    assert wrong == []
