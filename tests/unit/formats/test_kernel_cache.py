"""The cache of compiled kernels belongs to one installation, and a damaged one is compiled again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numba import njit

import wheelmq
from wheelmq.formats.kernels import cache
from wheelmq.formats.kernels.cache import CacheUnusable, compiling, is_complete, loading

ROOT = Path(wheelmq.__file__).parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the sources."""
    return Path(shutil.copytree(ROOT, tmp_path / "wheelmq", ignore=shutil.ignore_patterns("__pycache__")))


def test_two_installations_have_two_caches(copy: Path) -> None:
    assert cache.source_key(copy) != cache.source_key(ROOT) == cache.cache_folder().name


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
    before = cache.source_key(copy)
    with (copy / name).open("a") as file:
        file.write("\nCHANGED = 1\n")
    assert (cache.source_key(copy) != before) == counts


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setattr(cache, "cache_folder", lambda: tmp_path)
    return tmp_path


def compile_lists(folder: Path, say: Callable[[str], None], *lists: str) -> None:
    """Write the code of `lists` as a compilation would."""
    with compiling(say, *lists):
        for name in lists:
            (folder / f"{name}.nbi").write_bytes(b"index")
            (folder / f"{name}.nbc").write_bytes(b"code")


@pytest.mark.parametrize("lists", [("formats",), ("broker", "formats")])
def test_a_complete_cache_compiles_nothing(folder: Path, lists: tuple[str, ...]) -> None:
    said: list[str] = []
    compile_lists(folder, said.append, *lists)
    assert len(said) == 2 and is_complete(*lists)
    compile_lists(folder, said.append, "formats")
    assert len(said) == 2
    compile_lists(folder, said.append, "broker", "formats")
    assert len(said) == (2 if "broker" in lists else 4)


def test_a_list_of_another_process_stays(folder: Path) -> None:
    compile_lists(folder, print, "formats")
    with compiling(print, "broker", "formats"):
        assert (folder / "formats.nbc").exists(), "the code of tasks is not compiled twice"
        (folder / "broker.nbc").write_bytes(b"code")
    assert is_complete("broker", "formats")


@pytest.mark.parametrize("left", [b"", b"cod", None])
def test_a_damaged_file_makes_the_cache_incomplete_and_goes(folder: Path, left: bytes | None) -> None:
    """After a power cut, a file may be empty, short or gone, and the marker is there."""
    compile_lists(folder, print, "formats")
    code = folder / "formats.nbc"
    code.unlink() if left is None else code.write_bytes(left)
    assert not is_complete("formats")
    with compiling(print, "formats"):
        assert not list(folder.glob("*.nb?")), "Numba would fail at a damaged file"
        code.write_bytes(b"code")
    assert is_complete("formats")


@pytest.mark.parametrize("marker", ["", "[]", "{}", "7"])
def test_a_damaged_marker_makes_the_cache_incomplete(folder: Path, marker: str) -> None:
    compile_lists(folder, print, "formats")
    (folder / "formats").write_text(marker)
    assert not is_complete("formats")


def test_a_failed_compilation_leaves_an_empty_cache(folder: Path) -> None:
    with pytest.raises(EOFError), compiling(print, "formats"):
        (folder / "half.nbc").write_bytes(b"")
        raise EOFError
    assert not is_complete("formats") and not list(folder.glob("*.nb?"))


class TestLoad:
    def test_an_incomplete_cache_is_not_loaded_and_stays(self, folder: Path) -> None:
        (folder / "half.nbc").write_bytes(b"code")
        with pytest.raises(CacheUnusable, match="is not complete"), loading("formats"):
            pytest.fail("the cache is not complete")
        assert (folder / "half.nbc").exists(), "a later compilation continues"

    def test_a_load_compiles_nothing(self, folder: Path) -> None:
        compile_lists(folder, print, "formats")
        twice = njit(lambda number: 2 * number)
        with pytest.raises(CacheUnusable, match="for these arguments"), loading("formats"):
            twice(np.int64(1))
        assert twice.signatures == [], "it was not compiled"
        assert twice(np.int64(1)) == 2, "after the load it is"

    def test_a_failed_load_leaves_an_empty_cache(self, folder: Path) -> None:
        compile_lists(folder, print, "formats")
        with pytest.raises(CacheUnusable, match="EOFError"), loading("formats"):
            raise EOFError
        assert not is_complete("formats") and not list(folder.glob("*.nb?"))
