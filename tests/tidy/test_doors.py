"""Modules use time, files and chance only through the components of system/."""

from __future__ import annotations

import ast

import pytest

from .sources import Module, each_module, modules

TIME = {
    "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns",
    "time.process_time", "time.thread_time", "time.sleep", "datetime.now", "datetime.utcnow", "datetime.today",
    "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.date.today", "date.today",
}  # fmt: skip
FILES = {"open", "os.open", "os.fdopen", "io.open", "mmap.mmap", "np.memmap", "np.fromfile", "shutil.rmtree"}
FILE_METHODS = {"read_bytes", "read_text", "write_bytes", "write_text", "unlink", "mkdir", "touch", "rmdir"}
CHANCE = {"random", "secrets", "uuid"}
"""Modules. `from random import Random` imports a type only, and is allowed."""
CHANCE_CALLS = {"os.urandom", "np.random", "numpy.random"}

DOORS = ("system/", "testing/")
"""The components, and their replacements in tests."""

PROCESSES = ("pipeline/", "spark/", "cli/")
"""Separate processes, which wait for other processes, write logs and scratch folders, and print to terminals."""

JUSTIFIED: dict[str, set[str]] = {
    "broker/app.py": {"random"},  # the composition root creates the randomness
    "config/sources.py": {"read_bytes"},  # settings are read before components exist
    "formats/kernels/cache.py": {"open", "mkdir", "time.monotonic", "read_bytes", "read_text", "write_text", "unlink"},
    # the compile cache belongs to Numba and the user, not to a store; the broker runs without it
    "pyspark_rocketmq/mapped_store.py": {"mmap.mmap", "np.fromfile"},  # a task of Spark only reads another's store
    "pyspark_rocketmq/writers.py": {"uuid"},  # the name of a write, which only has to be new
    "net/managed_process.py": {"mkdir"},  # the folder for the log of a child process
}


def dotted(node: ast.expr) -> str:
    """Return the dotted name of an expression, or an empty text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def used_names(tree: ast.Module) -> set[str]:
    """Return the forbidden names that a module uses."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names} & CHANCE
        elif isinstance(node, ast.ImportFrom):
            if node.module in CHANCE and {alias.name for alias in node.names} != {"Random"}:
                found.add(node.module)
            if node.module == "time":
                found |= {f"time.{alias.name}" for alias in node.names} & TIME
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            found |= {name} & (TIME | FILES | CHANCE_CALLS)
            if isinstance(node.func, ast.Attribute) and node.func.attr in FILE_METHODS:
                found.add(node.func.attr)
        elif isinstance(node, ast.Attribute) and dotted(node) in TIME | CHANCE_CALLS:
            found.add(dotted(node))
    return found


@each_module
def test_a_module_uses_time_files_and_chance_only_by_components(module: Module) -> None:
    if module.name.startswith(DOORS + PROCESSES):
        return
    assert used_names(module.tree) <= JUSTIFIED.get(module.name, set())


def test_justified_exceptions_are_still_needed() -> None:
    for name, justified in JUSTIFIED.items():
        (module,) = [module for module in modules() if module.name == name]
        assert justified <= used_names(module.tree), name


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import time\ntime.time()", {"time.time"}),
        ("from time import monotonic\nmonotonic()", {"time.monotonic"}),
        ("import time\nclock = time.monotonic", {"time.monotonic"}),
        ("import datetime\ndatetime.datetime.now()", {"datetime.datetime.now"}),
        ("open('x')", {"open"}),
        ("path.read_text()", {"read_text"}),
        ("import random", {"random"}),
        ("from random import Random", set()),
        ("from random import Random, choice", {"random"}),
        ("import uuid", {"uuid"}),
        ("import os\nos.urandom(4)", {"os.urandom"}),
        ("import datetime\ndatetime.timedelta(days=1)", set()),
    ],
)
def test_the_rule_finds_forbidden_names(code: str, names: set[str]) -> None:
    assert used_names(ast.parse(code)) == names
