"""The page for a screen reader, the keyboard, a phone, dark mode, and browsers without scripts."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from wheelmq.dashboard import page
from wheelmq.dashboard.page import Account, AccountForm
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

from .html_tree import Element, parse_page
from .sample_figures import CountedRequests, read_figures, shown, steady_history

ACCOUNT = Account("bob", "operate", "token", (AccountForm("/logout", "Log out"), AccountForm("/operate", "Stop", "s")))
CSS = page.asset("style.css").decode()


@pytest.fixture(params=["full", "alarm", "away", "login", "result"])
def seen(request: pytest.FixtureRequest, harness: BrokerHarness) -> Element:
    """Each page, and the main page in its states."""
    if request.param == "login":
        return parse_page(page.render("login.html", problem="Wrong name or secret."))
    if request.param == "result":
        return parse_page(page.render("result.html", title="Stop", text="Done."))
    requests = CountedRequests(harness)
    requests.is_there = request.param != "away"
    harness.send("T", delay_ms=500)
    harness.send("T", delay_ms=9000)
    harness.advance(4000, PipelineModel(harness).work)
    if request.param == "alarm":
        harness.broker.parts.health.reject_sends("the disk is full")
    found = read_figures(requests)
    return shown(found, steady_history(found.get("now_ms", harness.now_ms)), account=ACCOUNT)


def test_the_page_has_a_language_a_title_and_a_width(seen: Element) -> None:
    assert seen.one("html").attributes["lang"] == "en"
    assert "WheelMQ" in seen.one("head").one("title").text
    assert seen.one("meta", name="viewport").attributes["content"] == "width=device-width, initial-scale=1"
    assert seen.one("meta", name="color-scheme").attributes["content"] == "light dark"


def test_headings_are_in_order(seen: Element) -> None:
    levels = [int(one.tag[1]) for one in seen.walk() if re.fullmatch(r"h[1-6]", one.tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(one.text for one in seen.walk() if re.fullmatch(r"h[1-6]", one.tag))


def test_each_reference_has_its_target(seen: Element) -> None:
    ids = [one.attributes["id"] for one in seen.walk() if "id" in one.attributes]
    assert len(ids) == len(set(ids))
    for one in seen.walk():
        for name in ("aria-labelledby", "aria-describedby", "for"):
            assert one.attributes.get(name, ids[0] if ids else "") in [*ids, ""], one.attributes
        if one.attributes.get("href", "").startswith("#"):
            assert one.attributes["href"][1:] in ids


def test_landmarks_and_controls_have_names(seen: Element) -> None:
    seen.one("main")
    labels = {one.attributes["for"] for one in seen.all("label")}
    for one in seen.walk():
        if one.tag == "input" and one.attributes.get("type") != "hidden":
            assert one.attributes["id"] in labels
        if one.tag in ("a", "button", "summary"):
            assert one.text
        if one.attributes.get("role") == "region" or one.tag == "nav":
            assert one.attributes.keys() & {"aria-label", "aria-labelledby"}


def test_tables_have_heads(seen: Element) -> None:
    for table in seen.all("table"):
        assert "aria-labelledby" in table.attributes
        for row in table.one("tbody").all("tr"):
            assert row.children[0].attributes["scope"] == "row"  # type: ignore[union-attr]
        for head in table.all("thead"):
            assert all(one.attributes["scope"] == "col" for one in head.all("th"))
            assert {len(row.children) for row in table.all("tr")} == {len(head.one("tr").children)}


def test_pictures_have_a_text_or_are_hidden(seen: Element) -> None:
    for svg in seen.all("svg"):
        if svg.attributes.get("role") == "img":
            assert "of the last hour" in svg.one("title").text
        else:
            hidden = [one for one in seen.walk() if one.attributes.get("aria-hidden") == "true"]
            assert any(svg is one or svg in one.all("svg") for one in hidden)


def test_the_keyboard_reaches_all_that_scrolls(seen: Element) -> None:
    for table in seen.all("table"):
        [box] = [one for one in seen.all("div") if table in one.children]
        is_long = len(table.one("tbody").all("tr")) > 10
        assert box.attributes["class"] == ("scroll" if is_long else "short")
        assert box.attributes.get("tabindex") == ("0" if is_long else None)
    assert not [one for one in seen.walk() if int(one.attributes.get("tabindex", "0")) > 0]
    assert ":focus-visible" in CSS and "outline: none" not in CSS.replace("main:focus { outline: none; }", "")


def test_the_policy_can_forbid_inline_code(seen: Element) -> None:
    for one in seen.walk():
        assert "style" not in one.attributes and one.tag != "style"
        assert not [name for name in one.attributes if name.startswith("on")]
        assert one.tag != "script" or (one.attributes["src"], one.text) == ("/refresh.js", "")
        for name in ("src", "href", "action"):
            assert re.match(r"[/#](?!/)|$", one.attributes.get(name, ""))


class TestMainPage:
    @pytest.fixture
    def requests(self, harness: BrokerHarness) -> CountedRequests:
        return CountedRequests(harness)

    def test_the_first_link_skips_to_the_figures(self, requests: CountedRequests) -> None:
        seen = shown(read_figures(requests))
        first = seen.all("a")[0]
        assert (first.attributes["href"], first.text) == ("#main", "Skip to the figures")
        assert seen.one("main").attributes == {"id": "main", "tabindex": "-1"}

    def test_the_state_is_announced_and_not_by_color_alone(self, requests: CountedRequests) -> None:
        seen = shown(read_figures(requests))
        assert seen.one(role="status").text == "All is well."
        title = seen.one(id="state").one("h2")
        assert title.text == "All is well" and title.all("svg"), "a text and a sign"
        alert = seen.one(role="alert")
        assert "hidden" in alert.attributes and not alert.text
        assert len(seen.all("svg", _class="swatch")) == 6 and "stroke-dasharray" in CSS

    def test_all_figures_are_there_without_a_script(self, requests: CountedRequests) -> None:
        found = read_figures(requests)
        seen = shown(found, steady_history(found["now_ms"]), refresh_s=30)
        assert not seen.all("script")
        assert seen.one("meta", http_equiv="refresh").attributes["content"] == "30"
        assert len(seen.all("figure")) == 3 and len(seen.all("polyline")) == 5
        assert seen.one("details").all("table")
        titles = [one.text for one in seen.all("h3")]
        for title in ("Pending by topic", "Due by day", "Groups with lag", "Dead letters", "Pipeline"):
            assert title in titles
        assert [one.attributes["href"] for one in seen.one("footer").all("a")] == ["/?refresh=30", "/", "/figures.json"]

    def test_a_page_does_not_load_itself_again_unasked(self, requests: CountedRequests) -> None:
        seen = shown(read_figures(requests))
        assert not seen.all("meta", http_equiv="refresh")
        links = {one.text: one.attributes["href"] for one in seen.one("footer").all("a")}
        assert links["Refresh every 30 s without a script"] == "/?refresh=30" and links["Refresh"] == "/"
        assert "hidden" in seen.one("button", id="pause").attributes, "only a script needs it"


# The style ---------------------------------------------------------------------------------------------------------


def colors(css: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", css))


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colors, as WCAG 2 defines it."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_texts_have_enough_contrast(mode: str) -> None:
    [dark] = re.findall(r"@media \(prefers-color-scheme: dark\) \{(.*?\})\s*\}", CSS, re.DOTALL)
    found = colors(CSS.partition("@media")[0]) | (colors(dark) if mode == "dark" else {})
    assert len(colors(dark)) == len(colors(CSS.partition("@media")[0]))
    for text, back in [
        *((text, back) for text in ("text", "muted", "link") for back in ("card", "back")),
        ("well-text", "well-back"),
        ("alarm-text", "alarm-back"),
    ]:
        assert contrast(found[text], found[back]) >= 4.5, (text, back)
    for line in ("a", "b", "bound"):
        assert contrast(found[line], found["card"]) >= 3, line


def test_a_phone_has_one_column() -> None:
    assert "minmax(min(21rem, 100%), 1fr)" in CSS and "columns: 2 30rem" in CSS and "@media (max-width" in CSS
