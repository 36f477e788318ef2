"""The dashboard in Chromium: its policy, its script, its layout, the keyboard and the tree of a screen reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Chromium, find_chromium
from tests.browser.served import OPERATOR, ServedBroker
from wheelmq.dashboard.sessions import Operation

pytestmark = pytest.mark.browser

PHONE = 360


FOCUS = """(() => {
  const one = document.activeElement, box = one.getBoundingClientRect();
  return one === document.body ? "" : (one.id || one.textContent.trim()) + (box.width > 0 ? "" : "!");
})()"""
"""The element with the focus; an exclamation mark follows if it is not visible."""
FRAME = "new Promise((done) => requestAnimationFrame(() => done()))"
"""The next frame. A page gives the focus to an element just before a frame, which can come after the load event."""
CHANGE = """new Promise((done) =>
  new MutationObserver(() => done()).observe(document.getElementById("state"), { childList: true }))"""
"""The next change of the banner."""
SHORT_TIMERS = "const slow = setTimeout; window.setTimeout = (work, ms) => slow(work, Math.min(ms, 200));"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedBroker]:
    with ServedBroker(tmp_path / "store") as found:
        yield found


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Chromium]:
    program = find_chromium()
    assert program is not None, "tests/conftest.py leaves this test out without Chromium"
    with Chromium(program, tmp_path / "profile") as found:
        yield found


def test_the_page_breaks_no_rule_of_its_policy(chromium: Chromium, served: ServedBroker) -> None:
    for path in ("", "?refresh=30"):
        chromium.open(served.url + path)
        assert chromium.problems() == []
    assert chromium.run("getComputedStyle(document.querySelector('.banner')).borderTopStyle") == "solid"
    assert chromium.run("document.querySelectorAll('svg.chart polyline').length") == 5


def test_the_script_shows_a_new_problem_and_keeps_the_focus(chromium: Chromium, served: ServedBroker) -> None:
    chromium.call("Page.addScriptToEvaluateOnNewDocument", source=SHORT_TIMERS)
    chromium.open(served.url)
    assert chromium.run("document.querySelector('#state h2').innerText").endswith("All is well")
    chromium.run("document.getElementById('history').open = true")
    chromium.run("document.getElementById('pending-2-table').focus()")
    served.is_rejecting = True
    chromium.run(CHANGE)
    assert "No space left" in chromium.run("document.getElementById('state').innerText")
    assert chromium.run("document.title") == "1 problem - WheelMQ"
    assert chromium.run("document.getElementById('history').open") is True
    assert chromium.run(FOCUS) == "pending-2-table"
    assert chromium.problems() == []


def test_all_is_readable_without_scripts(chromium: Chromium, served: ServedBroker) -> None:
    chromium.call("Emulation.setScriptExecutionDisabled", value=True)
    served.is_rejecting = True
    chromium.open(served.url)
    nodes = chromium.call("Accessibility.getFullAXTree")["nodes"]
    names = [str(node.get("name", {}).get("value", "")) for node in nodes]
    assert any("Free space on the disk" in name for name in names)
    images = [node for node in nodes if node.get("role", {}).get("value") in ("image", "img")]
    assert len([one for one in images if "of the last hour" in one["name"]["value"]]) == 3


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("width", [320, PHONE, 768, 1280])
def test_the_page_fits_each_width(chromium: Chromium, served: ServedBroker, width: int, mode: str) -> None:
    served.is_rejecting = True
    chromium.resize(width, 800, is_phone=width <= PHONE)
    chromium.prefer(mode)
    chromium.open(served.url)
    assert chromium.run("document.documentElement.scrollWidth") <= width
    back = chromium.run("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(13, 17, 23)") is (mode == "dark")
    assert chromium.picture().startswith(b"\x89PNG")


def test_the_keyboard_reaches_every_part(chromium: Chromium, served: ServedBroker) -> None:
    chromium.open(served.url)
    reached = []
    for _ in range(60):
        chromium.press_tab()
        reached.append(chromium.run(FOCUS))
        if reached[-1] == "":
            break
    assert reached[0] == "Skip to the figures"
    assert not [name for name in reached if name.endswith("!")], "each is visible"
    assert {"pending-2-table", "Consumer groups", "Refresh", "pause", "Figures as JSON"} <= set(reached)


def test_a_user_logs_in_operates_and_logs_out(chromium: Chromium, tmp_path: Path) -> None:
    """A browser decides which headers a form has. The server accepts only forms with its own origin."""
    with ServedBroker(tmp_path / "store", has_users=True) as served:
        chromium.open(served.url)
        chromium.run(FRAME)
        assert chromium.run("location.pathname") == "/login" and chromium.run(FOCUS) == "name"
        chromium.submit("form", name=OPERATOR.name, secret="wrong")
        assert "Wrong name or secret" in chromium.run("document.getElementById('problem').innerText")
        chromium.submit("form", name=OPERATOR.name, secret=OPERATOR.secret)
        assert chromium.run("location.pathname") == "/"
        assert "olga, role operate" in chromium.run("document.querySelector('.account').innerText")
        assert OPERATOR.secret not in chromium.run("document.documentElement.outerHTML")
        assert chromium.run("document.cookie") == "", "no script can read the cookie"
        chromium.submit("form[action='/operate']")
        assert "Done." in chromium.run("document.body.innerText")
        assert served.operations == [Operation.STOP_RELEASES]
        chromium.open(served.url)
        chromium.submit("form[action='/logout']")
        assert chromium.run("location.pathname") == "/login"
        chromium.open(served.url)
        assert chromium.run("location.pathname") == "/login"
