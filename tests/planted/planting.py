"""Apply a patch to a copy of src and run the simulation on the copy."""

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
CLUSTER = "cluster/"


def names() -> list[str]:
    """Return the names of all bugs. Those for the simulation of a cluster begin with `cluster/`."""
    return sorted(str(path.relative_to(HERE).with_suffix("")) for path in HERE.rglob("*.patch"))


def plant(name: str, folder: Path) -> Path:
    """Copy src to `folder` and plant the bug. Returns its path; raises CalledProcessError if the patch fails."""
    copy = folder / "src"
    shutil.copytree(SRC / "wheelmq", copy / "wheelmq", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(
        ["git", "apply", "--whitespace=nowarn", str(HERE / f"{name}.patch")],
        cwd=folder,
        check=True,
        capture_output=True,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},  # a parent folder may be a repository
    )
    return copy


def seeds_to_catch(name: str, seeds_max: int = SEEDS_MAX) -> tuple[int, str] | None:
    """Return the number of seeds run until one found the bug, and the violation. Returns None if no seed did."""
    with tempfile.TemporaryDirectory(prefix="wheelmq-planted-") as folder:
        src = plant(name, Path(folder))
        options = ["--seeds", str(seeds_max), "--first-only", *(["--cluster"] if name.startswith(CLUSTER) else [])]
        run = subprocess.run(
            [sys.executable, "-m", "wheelmq.testing.simulation", *options],
            env={**os.environ, "PYTHONPATH": str(src), "WHEELMQ_KERNELS": "plain", "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=folder,
            capture_output=True,
            text=True,
        )
    found = re.search(r"^seed (\d+): (.*)$", run.stdout, re.MULTILINE)
    ended = re.search(r"^(\d+) seeds, (\d) violations", run.stdout, re.MULTILINE)
    assert ended is not None, run.stderr
    return (int(ended[1]), found[2]) if found is not None and run.returncode == 1 else None
