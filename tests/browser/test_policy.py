"""Pages keep to a policy without inline code and without other hosts."""

import pytest
from playwright.sync_api import Browser

from tests.browser.conftest import Visitor
from tests.browser.test_accessibility import PAGES
from tests.services import Service


@pytest.mark.slow("loads every page for 30 s")
def test_pages_load_without_violations(browser: Browser, tuned: Service) -> None:
    """Neither scripts nor charts break the policy, and no other host gets a request."""
    with Visitor(browser, tuned.url).tab() as tab:
        asked: list[str] = []
        tab.page.on("request", lambda request: asked.append(request.url))
        for address in PAGES[:-1]:
            answer = tab.page.goto(address)
            assert answer is not None
            policy = answer.headers["content-security-policy"]
            assert "unsafe" not in policy
            assert "default-src 'none'" in policy
            for plot in tab.page.locator(".plot").all():
                plot.scroll_into_view_if_needed()
                tab.page.wait_for_timeout(300)
        assert all(url.startswith((tuned.url, "data:")) for url in asked)
        assert any("plotly" in url for url in asked)


def test_hostile_names_stay_text(browser: Browser, tuned: Service) -> None:
    """Markup in the name of a job is shown as text, in tables, titles and the data of charts."""
    with Visitor(browser, tuned.url).tab() as tab:
        for address in ("/", "/jobs/2", "/compare?a=1&b=2", "/jobs/2/delete"):
            tab.page.goto(address)
            assert tab.page.locator("main i").count() == 0
            assert "<i>two</i>" in tab.page.locator("main").inner_text()
        tab.page.goto("/compare?a=1&b=2")
        legend = tab.page.locator("#plot-over-trials .legend").first
        assert "B · <i>two</i>" in (legend.text_content() or "")
