"""The site of `make docs` has every page in its navigation, and only links that lead to pages or files.

The tests need no Sphinx. test_links.py checks that the links lead anywhere.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.docs.test_links import ROOT, links

CONF = runpy.run_path(str(ROOT / "docs" / "conf.py"))
PAGES: list[str] = CONF["PAGES"]


def test_the_sections_follow_the_needs_of_readers() -> None:
    assert list(CONF["sections"]()) == ["Start", "How to", "Operations", "Reference", "Design"]


def test_each_page_of_the_documentation_is_in_the_site() -> None:
    expected = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert {page.relative_to(ROOT).as_posix() for page in expected} <= set(PAGES)


def test_each_page_is_in_the_navigation_once() -> None:
    tables = [line[1:] + ".md" for page in PAGES for line in CONF["contents"](page).splitlines() if line[:1] == "/"]
    assert sorted([*tables, CONF["HOME"]]) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_to_pages_or_files(page: str) -> None:
    """The site can show no folder. It offers other files as downloads, where the links of a page would be lost."""
    targets = [(ROOT / page).parent.joinpath(link.partition("#")[0] or Path(page).name) for link in links(ROOT / page)]
    wrong = [
        target.resolve().relative_to(ROOT).as_posix()
        for target in targets
        if target.is_dir() or (target.suffix == ".md" and target.resolve().relative_to(ROOT).as_posix() not in PAGES)
    ]
    assert wrong == []


def test_a_page_in_a_folder_with_a_readme_is_below_it() -> None:
    parent = CONF["parent"]
    assert parent("docs/adr/0001-the-tick.md") == "docs/adr/README.md"
    assert parent("compat/go/FINDINGS.md") == "compat/go/README.md"
    assert parent("compat/go/README.md") == "compat/README.md"
    assert [parent(page) for page in ("README.md", "docs/client.md", "docs/adr/README.md", "SECURITY.md")] == [None] * 4


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_one_title(page: str) -> None:
    """The navigation shows the titles. A second one looks like a page of its own."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    assert re.findall(r"^#+", text, re.MULTILINE)[0] == "#"
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1
