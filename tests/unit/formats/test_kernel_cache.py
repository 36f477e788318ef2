"""The cache of compiled kernels belongs to one installation."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import wheelmq
from wheelmq.formats.kernels import jit

ROOT = Path(wheelmq.__file__).parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the sources."""
    return Path(shutil.copytree(ROOT, tmp_path / "wheelmq", ignore=shutil.ignore_patterns("__pycache__")))


def test_two_installations_have_two_caches(copy: Path) -> None:
    assert jit.source_key(copy) != jit.source_key(ROOT) == jit.cache_folder().name


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("formats/kernels/scan.py", True),
        ("formats/disk/timer.py", True),
        ("formats/rows.py", True),
        ("delay/fast/release.py", True),
        ("broker/fast/send_answer.py", True),
        ("system/pages.py", True),
        ("broker/fast_send.py", False),
    ],
)
def test_a_changed_kernel_or_constant_gets_a_new_cache(copy: Path, name: str, counts: bool) -> None:
    before = jit.source_key(copy)
    with (copy / name).open("a") as file:
        file.write("\nCHANGED = 1\n")
    assert (jit.source_key(copy) != before) == counts


@pytest.mark.parametrize("lists", [("formats",), ("broker", "formats")])
def test_a_complete_cache_compiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: tuple[str, ...]
) -> None:
    monkeypatch.setattr(jit, "cache_folder", lambda: tmp_path)
    said: list[str] = []
    with jit.compiling(said.append, *lists):
        pass
    assert len(said) == 2
    with jit.compiling(said.append, "formats"):
        pass
    assert len(said) == 2
    with jit.compiling(said.append, "broker", "formats"):
        pass
    assert len(said) == (2 if "broker" in lists else 4)
