"""A page as a tree of elements, to look at as a browser or a screen reader does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br", "img", "hr"}


@dataclass
class Element:
    """An element with its attributes, children and texts, in their order."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Element | str] = field(default_factory=list)

    def all(self, tag: str = "", **attributes: str) -> list[Element]:
        """Return the elements below this one with this tag and these attributes. An _ in a name is a hyphen."""
        wanted = {name.replace("_", "-").strip("-"): value for name, value in attributes.items()}
        return [
            one
            for one in self.walk()
            if tag in ("", one.tag) and all(one.attributes.get(name) == value for name, value in wanted.items())
        ]

    def one(self, tag: str = "", **attributes: str) -> Element:
        """Return the only such element."""
        [found] = self.all(tag, **attributes)
        return found

    def walk(self) -> Iterator[Element]:
        """Yield all elements below this one, as a document has them."""
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child.walk()

    @property
    def text(self) -> str:
        """Return the text of the element, with one blank between words."""
        parts = [child if isinstance(child, str) else f" {child.text} " for child in self.children]
        return " ".join("".join(parts).split())


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("document")
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        assert len(element.attributes) == len(attrs), f"an attribute of <{tag}> appears twice"
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse_page(text: bytes | str) -> Element:
    """Return the tree of a page. Each element must be closed in order."""
    builder = _Builder()
    builder.feed(text if isinstance(text, str) else text.decode())
    builder.close()
    assert builder.open == [builder.root], builder.open[-1].tag
    return builder.root
