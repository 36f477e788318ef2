"""The declared dependencies are the imported ones, with bounds, and the lock file satisfies them."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .sources import PACKAGES, modules

ROOT = Path(__file__).parents[2]


PLUGINS = {"s3fs"}
"""Packages that another package loads by the scheme of a URL."""
NAMESPACES = {"opentelemetry": {"opentelemetry-exporter-otlp-proto-grpc", "opentelemetry-sdk"}}
"""Names of modules that many packages share, with those of them that the package imports."""
HOSTS = {"pytest"}
"""Packages that load a plugin of ours. Only their users have the plugin's module imported."""


def locked(name: str = "wheelmq") -> dict[str, str]:
    """Returns the versions in a lock file, by package."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


OWN = "wheelmq-client"
"""Built from the same repository (tests/tidy/test_distributions.py)."""
FOR_CHECKERS = {"typing-extensions"}
"""Packages that only type checkers import. They have their own copies."""


def dependencies(*extras: str) -> list[str]:
    """Returns the dependencies as pyproject.toml has them, and then those of the extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: list[str] = [line for line in project["dependencies"] if not line.startswith(OWN)]
    return found + [line for extra in extras for line in project["optional-dependencies"][extra]]


def declared() -> dict[str, Requirement]:
    """Returns the dependencies by name."""
    found = [Requirement(line) for line in dependencies("spark", "ship", "opentelemetry")]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def imported() -> set[str]:
    """Returns the distributions of all third-party modules that the package imports, at any place in a module."""
    names: set[str] = set()
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add((node.module or "").partition(".")[0])
    third_party = names - set(sys.stdlib_module_names) - set(PACKAGES)
    owners = packages_distributions()
    shared = {owner for name in third_party & NAMESPACES.keys() for owner in NAMESPACES[name]}
    return shared | {canonicalize_name(owners[name][0]) for name in third_party - NAMESPACES.keys()}


def test_each_import_is_a_declared_dependency() -> None:
    assert imported() - HOSTS - FOR_CHECKERS == set(declared()) - PLUGINS


def test_each_dependency_has_both_bounds() -> None:
    for requirement in declared().values():
        assert {clause.operator for clause in requirement.specifier} == {">=", "<"}, str(requirement)


def test_the_lock_file_satisfies_each_bound() -> None:
    versions = locked()
    for name, requirement in declared().items():
        assert versions[name] in requirement.specifier, f"{requirement}, locked {versions[name]}"


def test_the_input_of_the_lock_file_has_the_same_dependencies() -> None:
    lines = (ROOT / "requirements/wheelmq.in").read_text().splitlines()
    runtime = [line for line in lines[: lines.index("# tools")] if not line.startswith("#")]
    assert runtime == dependencies("spark", "ship", "opentelemetry")


def test_the_client_has_both_bounds_and_those_of_the_broker_are_within() -> None:
    [line] = tomllib.loads((ROOT / "client/pyproject.toml").read_text())["project"]["dependencies"]
    own = Requirement(line)
    assert {clause.operator for clause in own.specifier} == {">=", "<"}
    assert locked()[own.name] in own.specifier


def test_the_extra_all_has_the_other_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [every] = map(Requirement, extras.pop("all"))
    assert (every.name, every.extras) == ("wheelmq", set(extras))
