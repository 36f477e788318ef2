"""The settings of Sphinx, which builds the site of `make docs` from the Markdown files of the repository.

The pages have no directives of Sphinx, so they read the same in a repository viewer. The navigation comes from the
sections of docs/README.md. In a folder with a README, that page is the parent of the other pages (ADR 42).
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
HOME = "README.md"
INDEX = "docs/README.md"
SOURCES = ("*.md", "docs/**/*.md", "bench/README.md", "compat/README.md", "compat/*/README.md", "compat/*/FINDINGS.md")
PAGES = sorted(path.relative_to(ROOT).as_posix() for pattern in SOURCES for path in ROOT.glob(pattern))

project = "WheelMQ"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
extensions = ["myst_parser"]
include_patterns = PAGES
exclude_patterns = [".*", "build", "client", "compat/*/target", "deploy", "dist", "src", "tests"]  # Sphinx skips them
root_doc = HOME.removesuffix(".md")
smartquotes = False  # a repository viewer keeps quotes and hyphens too
highlight_language = "text"  # of code without a language

myst_heading_anchors = 4

html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_show_copyright = False


def parent(page: str) -> str | None:
    """Return the page above `page` in the navigation, or None for a page of a section of the index."""
    folder = Path(page).parent
    readme = folder / "README.md"
    if readme.as_posix() == page:
        readme = folder.parent / "README.md"
    above = readme.as_posix()
    return above if above in PAGES and above not in (HOME, INDEX) else None


def sections() -> dict[str, list[str]]:
    """Return the pages of each section of the index, in its order. Pages with a parent are left out."""
    headings = re.split(r"^## (.*)\n", (ROOT / INDEX).read_text(encoding="utf-8"), flags=re.MULTILINE)
    found: dict[str, list[str]] = {}
    for caption, text in zip(headings[1::2], headings[2::2], strict=True):
        links = (re.sub(r"#.*", "", link) for link in re.findall(r"\]\(([^)\s]+)\)", text))
        targets = [(ROOT / INDEX).parent.joinpath(link).resolve() for link in links]
        pages = [target.relative_to(ROOT.resolve()).as_posix() for target in targets]
        found[caption] = [page for page in dict.fromkeys(pages) if page in PAGES and parent(page) is None]
    return found


def table(pages: list[str], caption: str | None = None) -> str:
    """Return a hidden table of contents, as MyST writes it."""
    options = [":hidden:", *([] if caption is None else [f":caption: {caption}"])]
    names = [f"/{page.removesuffix('.md')}" for page in pages]
    return "\n".join(["", "", "```{toctree}", *options, "", *names, "```", ""])


def contents(page: str) -> str:
    """Return the tables of contents that the navigation needs at the end of a page."""
    if page == HOME:
        return table([INDEX]) + "".join(table(pages, caption) for caption, pages in sections().items())
    children = [child for child in PAGES if parent(child) == page]
    return table(children) if children else ""


def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Append the tables of contents to the text of a page, in memory."""
    source[0] += contents(f"{name}.md")


def add_index(app: Sphinx, error: Exception | None) -> None:
    """Write index.html, which leads to the home page."""
    if error is None and app.builder.name == "html":
        target = f"{root_doc}.html"
        text = f'<!doctype html><meta charset="utf-8"><title>{project}</title>'
        text += f'<meta http-equiv="refresh" content="0; url={target}"><a href="{target}">{project}</a>\n'
        (Path(app.outdir) / "index.html").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_contents)
    app.connect("build-finished", add_index)
