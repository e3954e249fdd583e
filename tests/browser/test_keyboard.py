"""Everything can be reached and used with the keyboard alone."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import PATIENCE, Visitor
from tests.services import Service

pytestmark = pytest.mark.slow("walks through pages for 20 s")

_MAX_STOPS = 200
_STOP = """() => {
  const at = document.activeElement;
  if (!at || at === document.body) return null;
  const style = getComputedStyle(at);
  return {
    what: at.id || at.getAttribute("href") || at.textContent.trim().slice(0, 40),
    ring: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
  };
}"""


def test_tab_walks_through_every_page(browser: Browser, tuned: Service) -> None:
    """Tab passes through a page and out of it, and each stop shows the focus."""
    with Visitor(browser, tuned.url).tab() as tab:
        for address in ("/", "/jobs/1", "/records?q=heavy", "/compare?a=1&b=2", "/workers"):
            tab.page.goto(address)
            stops = _walk(tab.page)
            assert stops[0]["what"] == "#main"
            assert len(stops) > 8, address
            assert all(stop["ring"] for stop in stops), [s for s in stops if not s["ring"]]


def test_the_first_stop_skips_the_navigation(browser: Browser, tuned: Service) -> None:
    """The first link leads to the content."""
    with Visitor(browser, tuned.url).tab() as tab:
        tab.page.goto("/jobs/1")
        tab.page.keyboard.press("Tab")
        expect(tab.page.locator(".skip")).to_be_focused()
        tab.page.keyboard.press("Enter")
        tab.page.keyboard.press("Tab")
        assert tab.page.evaluate("document.activeElement.closest('main') !== null")


def test_a_job_is_submitted_and_sorted_by_keys(visitor: Visitor) -> None:
    """A job is submitted and its table sorted without a pointer, and the focus stays."""
    with visitor.tab() as tab:
        page = tab.page
        page.goto("/")
        _tab_to(page, "zoo")
        page.keyboard.type("mlp")
        _tab_to(page, "trials")
        page.keyboard.type("12")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(r"/jobs/\d+$"), timeout=PATIENCE)
        expect(page.locator("#tasks tbody tr")).to_have_count(4, timeout=PATIENCE)
        expect(page.locator("#state")).to_have_text("done", timeout=PATIENCE)
        _tab_to(page, "sort-latency_ms")
        page.keyboard.press("Enter")
        expect(page.locator("th[aria-sort]")).to_have_text(re.compile("Latency"))
        assert page.evaluate("document.activeElement.id") == "sort-latency_ms"


def _walk(page: Page) -> list[dict[str, object]]:
    stops: list[dict[str, object]] = []
    for _ in range(_MAX_STOPS):
        page.keyboard.press("Tab")
        stop = page.evaluate(_STOP)
        if stop is None:
            return stops
        if stop["what"] == "#main" and stops:
            return stops
        stops.append(stop)
    raise AssertionError(f"no end after {_MAX_STOPS} stops: {stops[-3:]}")


def _tab_to(page: Page, element: str) -> None:
    for _ in range(_MAX_STOPS):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == element:
            return
    raise AssertionError(f"the keyboard does not reach {element}")
