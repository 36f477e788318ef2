"""Limits for the size of modules and functions."""

from __future__ import annotations

import ast

from .sources import Module, each_module, outside_paths

MODULE_LINES = 500
FUNCTION_LINES = 70
KERNEL_LINES = 90
"""A kernel is one loop over bytes. Its calls are compiled into it, and it can pass only arrays."""


@each_module
def test_a_module_is_within_its_line_limit(module: Module) -> None:
    assert len(module.text.splitlines()) <= MODULE_LINES


def test_modules_outside_the_package_are_within_the_line_limit() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in outside_paths()}
    assert len(lines) > 300
    assert {str(path): count for path, count in lines.items() if count > MODULE_LINES} == {}


@each_module
def test_functions_are_within_their_line_limit(module: Module) -> None:
    limit = KERNEL_LINES if module.has_kernels else FUNCTION_LINES
    long = {
        node.name: (node.end_lineno or 0) - node.lineno + 1
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: lines for name, lines in long.items() if lines > limit} == {}


@each_module
def test_a_module_has_a_docstring(module: Module) -> None:
    if module.text.strip():
        assert ast.get_docstring(module.tree)
