"""The cache of compiled code notices each change of a kernel, and `warm` compiles each kernel."""

from __future__ import annotations

import ast

import pytest

from wheelmq.formats.kernels.cache import SOURCES

from .sources import ROOT, Module, modules
from .test_cycles import import_graph

KERNEL_MODULES = [module for module in modules() if module.has_kernels]
LISTS = ("formats/kernels/warm.py", "broker/fast/warm.py")
"""The modules that compile all kernels."""


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return import_graph(modules())


def hashed() -> set[str]:
    """Return the modules whose sources are in the name of the cache."""
    return {path.relative_to(ROOT).as_posix() for pattern in SOURCES for path in ROOT.glob(pattern)}


def kernels(module: Module) -> set[str]:
    """Return the kernels of a module as their callers name them, like `bits.put`."""
    name = module.name.rpartition("/")[2].removesuffix(".py")
    return {
        f"{name}.{node.name}"
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef)
        and {ast.unparse(decorator) for decorator in node.decorator_list} & {"kernel", "free_kernel"}
    }


def test_kernels_are_found() -> None:
    assert len(KERNEL_MODULES) >= 25
    assert {"send.accept_sends", "index.index_log"} <= set().union(*map(kernels, KERNEL_MODULES))


@pytest.mark.parametrize("module", KERNEL_MODULES, ids=lambda module: module.name)
def test_the_cache_depends_on_all_that_a_kernel_compiles(module: Module, graph: dict[str, set[str]]) -> None:
    """A kernel compiles the values of the constants that its module imports."""
    assert {module.name} | graph[module.name] <= hashed()


def test_every_kernel_is_compiled_before_its_first_use() -> None:
    lists = [module for module in modules() if module.name in LISTS]
    called = {
        ast.unparse(node.func) for module in lists for node in ast.walk(module.tree) if isinstance(node, ast.Call)
    }
    assert set().union(*map(kernels, KERNEL_MODULES)) <= called


@pytest.mark.parametrize("module", KERNEL_MODULES, ids=lambda module: module.name)
def test_a_kernel_outside_of_formats_names_its_twin(module: Module) -> None:
    assert module.part == "formats" or "Twin:" in module.text
