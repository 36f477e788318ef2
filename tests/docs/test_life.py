"""docs/life-of-a-delayed-message.md names functions and classes that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "life-of-a-delayed-message.md").read_text()
NAMED = sorted(set(re.findall(r"`(\w+(?:/\w+)*\.py):(\w+)`", PAGE)))


def test_the_page_names_functions() -> None:
    assert len(NAMED) > 30


@pytest.mark.parametrize(("path", "name"), NAMED, ids=lambda text: text)
def test_the_function_exists(path: str, name: str) -> None:
    tree = ast.parse((ROOT / "src" / "wheelmq" / path).read_text())
    defined = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    assert name in defined
