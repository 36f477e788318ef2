"""The files of `wheelmq-client` and of `wheelmq`, which share the folder src/ (ADR 39).

python -m tests.tidy.distributions    prints the files of the client, for `mypy --python-version 3.10`
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
CLIENT: Final = "client/pyproject.toml"
BROKER: Final = "pyproject.toml"


def project(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / name).read_text())


def client_list() -> list[str]:
    """Return the files and folders of the client, as its pyproject.toml lists them."""
    found: list[str] = project(CLIENT)["tool"]["hatch"]["build"]["only-include"]
    return found


def broker_exclusions() -> list[str]:
    """Return the files and folders that the broker's wheel does not have."""
    found: list[str] = project(BROKER)["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]
    return found


def client_files() -> set[Path]:
    """Return the modules of the client, by their paths in the repository."""
    found: set[Path] = set()
    for name in client_list():
        path = ROOT / name
        found |= set(path.rglob("*.py")) if path.is_dir() else {path} if path.suffix == ".py" else set()
    return found


if __name__ == "__main__":
    for path in sorted(client_files()):
        print(path.relative_to(ROOT))
