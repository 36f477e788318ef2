"""The cache of compiled kernels belongs to one installation."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

from wheelmq.formats.kernels import jit


def test_two_installations_have_two_caches(tmp_path: Path) -> None:
    for source in Path(jit.__file__).parent.glob("*.py"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    here = jit.cache_folder()
    with mock.patch.object(jit, "_FOLDER", tmp_path):
        assert jit.cache_folder() != here


def test_a_changed_kernel_gets_a_new_cache(tmp_path: Path) -> None:
    with mock.patch.object(jit, "_FOLDER", tmp_path):
        before = jit.cache_folder()
        (tmp_path / "kernel.py").write_text("changed")
        assert jit.cache_folder() != before
