"""Changes of values in a TOML file. The rest of the file stays unchanged."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from wheelmq.config.errors import ConfigError
from wheelmq.config.toml_edit import with_changes


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("[a]\nx = 1\n", 2, "[a]\nx = 2\n"),
        ("# top\n[a] # here\n  x=1   # why\ny = 3\n", 2, "# top\n[a] # here\n  x=2   # why\ny = 3\n"),
        ("[b]\nx = 1\n[a]\n", True, "[b]\nx = 1\n[a]\nx = true\n"),
        ("[a]", 2, "[a]\nx = 2\n"),
        ("[b]\nx = 1", 2, "[b]\nx = 1\n\n[a]\nx = 2\n"),
        ("", 'é"', '[a]\nx = "\\u00e9\\""\n'),
        ("[a]\ny = [\n 1,\n]\nx = 'q'\n", "w", '[a]\nx = "w"\ny = [\n 1,\n]\n'),
    ],
)
def test_a_change_keeps_the_rest_of_the_file(text: str, value: Any, expected: str) -> None:
    changed = with_changes(text.encode(), {("a", "x"): value}).decode()
    assert tomllib.loads(changed)["a"]["x"] == value
    if "[\n" not in text:
        assert changed == expected


@pytest.mark.parametrize("text", ["a = {x = 1}\n", "a.x = 1\n", "[a]\nx = '''\n1'''\n", "[a]\nx.y = 1\n", "[a\n"])
def test_a_file_that_is_too_complex_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError):
        with_changes(text.encode(), {("a", "x"): 2})
