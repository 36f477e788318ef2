"""Modules and functions that fit a head."""

from __future__ import annotations

import ast

import pytest

from .sources import Module, modules

MODULE_LINES = 500
FUNCTION_LINES = 70
KERNEL_LINES = 90
"""A kernel is one loop over bytes: what it calls is compiled into it, and arrays are all that it may pass on."""


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_module(module: Module) -> None:
    assert len(module.text.splitlines()) <= MODULE_LINES


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_functions(module: Module) -> None:
    limit = KERNEL_LINES if module.name.startswith("formats/kernels/") else FUNCTION_LINES
    long = {
        node.name: (node.end_lineno or 0) - node.lineno + 1
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: lines for name, lines in long.items() if lines > limit} == {}


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_a_module_says_what_it_is(module: Module) -> None:
    if module.text.strip():
        assert ast.get_docstring(module.tree)
