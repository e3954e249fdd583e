"""Every page in both themes and on a phone: no findings of axe, and no sideways scrolling."""

import json
from dataclasses import replace
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page

from tests.browser.conftest import DESKTOP, PHONE, Visitor
from tests.services import Service
from tests.tuner.profiling.small_profile import PROFILE
from tuner.profiling.page import as_page
from tuner.profiling.verdicts import Verdict

PAGES = (
    "/",
    "/jobs/1",
    "/jobs/1?sort=-trials",
    "/jobs/1/delete",
    "/workers",
    "/records?q=heavy",
    "/records?task=1&failed=1",
    "/records/1",
    "/compare",
    "/compare?a=1&b=2",
    "/networks",
    "/networks/1",
    "/tokens",
    "/reference",
    "/audit",
    "/login",
    "/nowhere",
)
_LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": DESKTOP, "color_scheme": "light"},
    "dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "color_scheme": "dark", "has_touch": True},
}

_CELLS_THAT_OVERFLOW = """
[...document.querySelectorAll("table.cards td, .facts dd")]
  .filter(cell => cell.clientWidth > 1 && cell.scrollWidth > cell.clientWidth + 1)
  .map(cell => cell.innerText)
"""


@pytest.mark.parametrize(
    "look",
    [
        "light",
        pytest.param("dark", marks=pytest.mark.slow("15 s a look")),
        pytest.param("phone", marks=pytest.mark.slow("15 s a look")),
    ],
)
@pytest.mark.slow("checks every page for 45 s")
def test_axe_finds_nothing(browser: Browser, tuned: Service, look: str) -> None:
    """Pages meet WCAG for contrast, names, roles and order, and fit the width of the screen."""
    axe = Axe()
    problems: dict[str, list[str]] = {}
    with Visitor(browser, tuned.url).tab(expect_clean_console=False, **_LOOKS[look]) as tab:
        for address in PAGES:
            tab.page.goto(address)
            _open_everything(tab.page)
            violations = axe.run(tab.page).response["violations"]
            problems |= {
                f"{address} {violation['id']}": _where(violation) for violation in violations
            }
            wide = tab.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{address} is {wide} pixels too wide"
            over = tab.page.evaluate(_CELLS_THAT_OVERFLOW)
            problems |= {f"{address} overflow": over} if over else {}
    assert not problems, json.dumps(problems, indent=1)


def test_tables_of_a_profile_fit_a_laptop(browser: Browser) -> None:
    """No column of a profile with two peers and a long command is out of sight."""
    verdict = Verdict("early", "tuner tune model.onnx --input image=1,3,32,32 --trials 200")
    kernel = replace(PROFILE.kernels[0], verdict=verdict)
    peers = (*PROFILE.peers, replace(PROFILE.peers[0], name="openvino"))
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_content(as_page(replace(PROFILE, kernels=(kernel,), peers=peers)))

    hidden = page.evaluate(
        "[...document.querySelectorAll('.table')].map(each => each.scrollWidth - each.clientWidth)"
    )
    page.close()

    assert hidden == [0, 0, 0]


def _open_everything(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    for plot in page.locator(".plot").all():
        plot.scroll_into_view_if_needed()
    if page.locator(".plot").count():
        page.wait_for_selector(".plot .main-svg")
    # Transitions have ended.
    page.wait_for_timeout(200)


def _where(violation: dict[str, Any]) -> list[str]:
    return [f"{node['html'][:200]}: {node['failureSummary']}" for node in violation["nodes"][:3]]
