"""No module imports itself through other modules. Imports for types and imports inside functions count too.

An import of a module also runs the `__init__` of its packages. That alone does not count as an import, because an
`__init__` may collect names from the modules of its package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

import pytest

from .sources import Module, modules

Graph = Mapping[str, Iterable[str]]


def import_graph(found: Iterable[Module]) -> dict[str, set[str]]:
    """Return the modules that each module imports, by their file names."""
    names = {module.dotted_name: module.name for module in found}
    graph: dict[str, set[str]] = {}
    for module in found:
        imported = graph[module.name] = set()
        for source, parts in module.imports():
            for part in parts or ("",):
                name = f"{source}.{part}"
                imported.add(names[name] if name in names else names[source])
    return graph


def circles(graph: Graph) -> list[set[str]]:
    """Return the strongly connected components of more than one module (Tarjan's algorithm)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        path.append(module)
        for imported in graph[module]:
            if imported not in numbers:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in path:
                lowest[module] = min(lowest[module], numbers[imported])
        if lowest[module] == numbers[module]:
            begin = path.index(module)
            if len(path) - begin > 1:
                found.append(set(path[begin:]))
            del path[begin:]

    for module in graph:
        if module not in numbers:
            visit(module)
    return found


@pytest.fixture(scope="module")
def found() -> list[set[str]]:
    return circles(import_graph(modules()))


def test_no_modules_import_each_other(found: list[set[str]]) -> None:
    assert [sorted(circle) for circle in found] == []


class TestSearch:
    @pytest.mark.parametrize(
        ("graph", "expected"),
        [
            ({"a": "b", "b": "c", "c": ""}, []),
            ({"a": "bc", "b": "d", "c": "d", "d": ""}, []),
            ({"a": "b", "b": "a"}, ["ab"]),
            ({"a": "b", "b": "c", "c": "bd", "d": ""}, ["bc"]),
            ({"a": "b", "b": "ac", "c": "d", "d": "c"}, ["ab", "cd"]),
            ({"a": "b", "b": "c", "c": "ad", "d": "b"}, ["abcd"]),
        ],
    )
    def test_circles_are_found(self, graph: Graph, expected: list[str]) -> None:
        assert sorted("".join(sorted(circle)) for circle in circles(graph)) == expected

    @pytest.mark.parametrize(
        ("text", "imported"),
        [
            ("import wheelmq.p.b", {"p/b.py"}),
            ("from wheelmq.p.b import name", {"p/b.py"}),
            ("from wheelmq.p import b", {"p/b.py"}),
            ("from wheelmq.p import b, name", {"p/__init__.py", "p/b.py"}),
            ("if TYPE_CHECKING:\n    from wheelmq.p.b import Name", {"p/b.py"}),
            ("def function():\n    from wheelmq.p.b import name", {"p/b.py"}),
            ("import asyncio", set()),
        ],
    )
    def test_all_kinds_of_imports_count(self, text: str, imported: set[str]) -> None:
        texts = {"p/__init__.py": "", "p/b.py": "", "a.py": text}
        assert import_graph([Module(name, "", one, ast.parse(one)) for name, one in texts.items()])["a.py"] == imported
