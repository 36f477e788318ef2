"""Tools that build or install what a suite needs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path


class BuildError(Exception):
    """A tool could not resolve, compile or install. The message ends with its output."""


def run_tool(command: Sequence[str], folder: Path, deadline_s: float, **environment: str) -> None:
    """Run a tool that builds or installs, in `folder`. Raises BuildError with the end of its output."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=deadline_s,
    )
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command[:4])} failed:\n{done.stdout[-4000:]}")
