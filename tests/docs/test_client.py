"""The examples of the page on the client run, and print the output on the page."""

from __future__ import annotations

import builtins
import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.client.servers import Cluster, ours
from wheelmq import client

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ours(tmp_path_factory.mktemp("servers")) as running:
        yield running


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_prints_the_output_on_the_page(example: str, cluster: Cluster) -> None:
    assert "127.0.0.1:9876" in example
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example.replace("127.0.0.1:9876", cluster.namesrv), "docs/client.md", "exec"), {})
    assert printed.getvalue().splitlines() == re.findall(r"# > (.*)$", example, re.MULTILINE)


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) > 5


def test_the_classes_and_methods_on_the_page_exist() -> None:
    classes = re.findall(r"`((?:Sync)?[A-Z]\w+(?:Producer|Consumer|Admin|Settings|Error))\b", PAGE)
    assert len(set(classes)) > 10
    assert all(hasattr(client, name) or hasattr(builtins, name) for name in classes)
    methods = re.findall(r"`([a-z_]+)`", PAGE.partition("Also `topics`")[2].partition("A request")[0])
    assert methods and all(hasattr(client.Admin, name) and hasattr(client.SyncAdmin, name) for name in methods)
