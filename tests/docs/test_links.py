"""Each relative link in the Markdown files of the repository leads to a file, and to a heading where it names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "bench", "compat", "tests", "src")
BUILT = "target"
"""The folder in which a suite of compat/ builds. It has pages of others."""
FOUND = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
PAGES = sorted(page for page in FOUND if BUILT not in page.relative_to(ROOT).parts)


def links(page: Path) -> list[str]:
    """Returns the targets of the relative links outside of code blocks."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """Returns the anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def problem(page: Path, link: str) -> str | None:
    """Returns the reason why `link` leads nowhere; None for a good link."""
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if not target.exists():
        return f"{link}: there is no such file"
    if anchor and target.suffix == ".md" and anchor not in anchors(target):
        return f"{link}: the page has no such heading"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_to_files_and_headings(page: Path) -> None:
    assert [found for link in links(page) if (found := problem(page, link)) is not None] == []


def test_an_index_lists_every_page() -> None:
    indexes = [ROOT / "docs" / "README.md", ROOT / "docs" / "adr" / "README.md"]
    listed = {(index.parent / link.partition("#")[0]).resolve() for index in indexes for link in links(index)}
    pages = {page.resolve() for page in (ROOT / "docs").rglob("*.md")}
    assert {page.name for page in pages - listed - set(indexes)} == set()


def test_links_are_found_and_checked(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `title`\n[a](#a-title) [b](page.md) [c](https://x) [d](#b) [e](no.md)\n```\n[f](f.md)\n```\n")
    assert links(page) == ["#a-title", "page.md", "#b", "no.md"]
    assert [problem(page, link) is None for link in links(page)] == [True, True, False, False]
    assert sum(len(links(found)) for found in PAGES) > 100
