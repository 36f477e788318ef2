"""A patch applied to a copy of src, and the simulation run on that."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import wheelmq

HERE = Path(__file__).parent
SRC = Path(wheelmq.__file__).parents[1]
SEEDS_MAX = 300


def names() -> list[str]:
    """The bugs there are."""
    return sorted(path.stem for path in HERE.glob("*.patch"))


def plant(name: str, folder: Path) -> Path:
    """A copy of src in `folder`, with that bug: its path. Raises CalledProcessError when the patch does not apply."""
    copy = folder / "src"
    shutil.copytree(SRC / "wheelmq", copy / "wheelmq", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(
        ["git", "apply", "--whitespace=nowarn", str(HERE / f"{name}.patch")],
        cwd=folder,
        check=True,
        capture_output=True,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},  # a folder around it may be a repository
    )
    return copy


def seeds_to_catch(name: str, seeds_max: int = SEEDS_MAX) -> tuple[int, str] | None:
    """How many seeds it took until one found the bug, and what it found; None when none did."""
    with tempfile.TemporaryDirectory(prefix="wheelmq-planted-") as folder:
        src = plant(name, Path(folder))
        run = subprocess.run(
            [sys.executable, "-m", "wheelmq.testing.simulation", "--seeds", str(seeds_max), "--first-only"],
            env={**os.environ, "PYTHONPATH": str(src), "WHEELMQ_KERNELS": "plain", "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=folder,
            capture_output=True,
            text=True,
        )
    found = re.search(r"^seed (\d+): (.*)$", run.stdout, re.MULTILINE)
    ended = re.search(r"^(\d+) seeds, (\d) violations", run.stdout, re.MULTILINE)
    assert ended is not None, run.stderr
    return (int(ended[1]), found[2]) if found is not None and run.returncode == 1 else None
