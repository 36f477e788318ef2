"""The modules of both packages, parsed once, and the paths of the modules outside them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyspark_rocketmq
import wheelmq

ROOT = Path(wheelmq.__file__).parent
CONNECTOR = Path(pyspark_rocketmq.__file__).parent
PACKAGES = (ROOT.name, CONNECTOR.name)
REPOSITORY = Path(__file__).parents[2]
OUTSIDE = ("tests", "bench", "compat", "examples")
"""The folders of the repository whose modules are not part of a package."""
JIT = "wheelmq.formats.kernels.jit"
DECORATORS = {"kernel", "free_kernel", "part", "inline", "external"}
"""The functions of `JIT` that compile."""


@dataclass(frozen=True)
class Module:
    """One module. `name` is like broker/flush.py. `part` is the folder under the package, or the module name.

    The connector is one part. Its modules have names like pyspark_rocketmq/rows.py.
    """

    name: str
    part: str
    text: str
    tree: ast.Module

    def imports(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return all imports from the packages: (module, names)."""
        found: list[tuple[str, tuple[str, ...]]] = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
                found.append((node.module or "", tuple(alias.name for alias in node.names)))
            elif isinstance(node, ast.Import):
                found += [(alias.name, ()) for alias in node.names if alias.name.split(".")[0] in PACKAGES]
        return found

    @property
    def dotted_name(self) -> str:
        """The name of the module in an import statement."""
        path = self.name if self.part == CONNECTOR.name else f"{ROOT.name}/{self.name}"
        return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def has_kernels(self) -> bool:
        """Return whether the module holds code that Numba compiles."""
        return any(DECORATORS & set(names) for imported, names in self.imports() if imported == JIT)


@lru_cache(1)
def modules() -> tuple[Module, ...]:
    """Return every module of the packages."""
    paths = [(path, path.relative_to(ROOT)) for path in sorted(ROOT.rglob("*.py"))]
    paths += [(path, path.relative_to(CONNECTOR.parent)) for path in sorted(CONNECTOR.rglob("*.py"))]
    found = []
    for path, relative in paths:
        name = relative.as_posix()
        text = path.read_text(encoding="utf-8")
        found.append(Module(name, name.split("/")[0].removesuffix(".py"), text, ast.parse(text, name)))
    return tuple(found)


def outside_paths() -> list[Path]:
    """Return the paths of all modules outside the packages, without those that suites install into `target`."""
    return [
        path
        for folder in OUTSIDE
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        if "target" not in path.relative_to(REPOSITORY).parts
    ]


def each_module(check: Callable[[Module], None]) -> Callable[[], None]:
    """Make one test of `check`, which calls it with every module and reports all modules that fail.

    A test for each module would be thousands of tests, and each process of a run would collect all of them.
    """

    def test() -> None:
        wrong: dict[str, str] = {}
        for module in modules():
            try:
                check(module)
            except AssertionError as error:
                wrong[module.name] = str(error)
        assert wrong == {}

    test.__name__, test.__doc__ = check.__name__, check.__doc__
    return test
