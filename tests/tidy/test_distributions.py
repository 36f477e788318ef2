"""Each module is in one distribution, and the client's modules import each other and msgspec alone."""

from __future__ import annotations

import ast
import sys

from .distributions import BROKER, CLIENT, ROOT, broker_exclusions, client_files, client_list, project
from .sources import PACKAGES, modules

THIRD_PARTY = {"msgspec"}
FOR_CHECKERS = {"typing_extensions"}
"""Packages that only type checkers import. They have their own copies."""


def client_modules() -> dict[str, ast.Module]:
    """Return the modules of the client by their dotted names."""
    paths = {path.relative_to(ROOT / "src" / "wheelmq").as_posix() for path in client_files()}
    return {module.dotted_name: module.tree for module in modules() if module.name in paths}


def imports(tree: ast.Module, known: set[str]) -> set[str]:
    """Return the modules that a module imports, at any place in it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            source = node.module or ""
            found |= {inner if (inner := f"{source}.{alias.name}") in known else source for alias in node.names}
    return found


ALL = {module.dotted_name for module in modules()}
OWN = client_modules()


def test_the_broker_leaves_out_exactly_the_files_of_the_client() -> None:
    assert broker_exclusions() == [f"/{name}" for name in client_list()]
    assert client_list() == sorted(client_list())
    assert all((ROOT / name).exists() for name in client_list())


def test_the_client_imports_no_module_of_the_broker() -> None:
    """Imports for types count: users check types with the client alone."""
    foreign = {
        name: found
        for name, tree in OWN.items()
        if (found := {one for one in imports(tree, ALL) if one.split(".")[0] in PACKAGES} - set(OWN))
    }
    assert foreign == {}


def test_the_client_has_no_module_without_use() -> None:
    reached, left = set[str](), ["wheelmq.client"]
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            left += {one for one in imports(OWN[name], ALL) if one in OWN} | {name.rpartition(".")[0]} - {""}
    assert {name for name in OWN if not name.startswith("wheelmq.client.")} <= reached


def test_the_client_needs_no_other_package() -> None:
    """NumPy, Numba and Spark would be found here."""
    found = {one.split(".")[0] for tree in OWN.values() for one in imports(tree, ALL)}
    assert found - set(sys.stdlib_module_names) - set(PACKAGES) - FOR_CHECKERS == THIRD_PARTY


def test_both_packages_have_one_version() -> None:
    version = project(CLIENT)["project"]["version"]
    assert project(BROKER)["project"]["version"] == version
    assert f"wheelmq-client=={version}" in project(BROKER)["project"]["dependencies"]


def test_the_folder_of_the_client_has_the_sources_and_the_licence() -> None:
    """An archive keeps a link to a file as a link. So the licence is a copy."""
    assert (ROOT / "client" / "src").resolve() == ROOT / "src"
    for name in ("LICENSE", "NOTICE"):
        assert (ROOT / "client" / name).read_text() == (ROOT / name).read_text()
