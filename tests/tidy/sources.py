"""The package's modules, parsed once, and the paths of the modules outside it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import wheelmq

ROOT = Path(wheelmq.__file__).parent
REPOSITORY = Path(__file__).parents[2]
OUTSIDE = ("tests", "bench", "compat")
"""The folders of the repository whose modules are not part of the package."""
JIT = "wheelmq.formats.kernels.jit"
DECORATORS = {"kernel", "free_kernel", "part", "inline", "external"}
"""The functions of `JIT` that compile."""


@dataclass(frozen=True)
class Module:
    """One module. `name` is like broker/flush.py. `part` is the folder under the package, or the module name."""

    name: str
    part: str
    text: str
    tree: ast.Module

    def imports(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return all imports from the package: (module, names)."""
        found: list[tuple[str, tuple[str, ...]]] = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "wheelmq":
                found.append((node.module or "", tuple(alias.name for alias in node.names)))
            elif isinstance(node, ast.Import):
                found += [(alias.name, ()) for alias in node.names if alias.name.split(".")[0] == "wheelmq"]
        return found

    @property
    def has_kernels(self) -> bool:
        """Return whether the module holds code that Numba compiles."""
        return any(DECORATORS & set(names) for imported, names in self.imports() if imported == JIT)


@lru_cache(1)
def modules() -> tuple[Module, ...]:
    """Return every module of the package."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        found.append(Module(name, name.split("/")[0].removesuffix(".py"), text, ast.parse(text, name)))
    return tuple(found)


def outside_paths() -> list[Path]:
    """Return the paths of all modules outside the package, without those that suites install into `target`."""
    return [
        path
        for folder in OUTSIDE
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        if "target" not in path.relative_to(REPOSITORY).parts
    ]
