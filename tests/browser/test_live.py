"""Submission, control, builds, downloads and comparison in a browser."""

import hashlib
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import PATIENCE, Visitor, model_file, submit, wait_for_state
from tests.services import Service

expect.set_options(timeout=PATIENCE)


@pytest.mark.in_ci
@pytest.mark.slow("10 s: follows a job")
def test_a_job_from_its_file_to_its_library(visitor: Visitor, tmp_path: Path) -> None:
    """Trials arrive without a reload, and the page controls the job, builds and downloads it."""
    with visitor.tab() as tab:
        page = tab.page
        page.goto("/")
        expect(page.get_by_text("No jobs yet.")).to_be_visible()
        page.set_input_files("#model", model_file(tmp_path))
        page.fill("#trials", "400")
        page.fill("#name", "<b>bold</b>")
        page.get_by_role("button", name="Submit job").click()
        expect(page).to_have_url(re.compile(r"/jobs/1$"))
        page.evaluate("window.sameDocument = true")

        expect(page.locator("#tasks tbody tr")).to_have_count(4)
        expect(page.get_by_role("heading", name="<b>bold</b>")).to_be_visible()
        _wait_for_trials(page, 10)
        expect(page.locator("#plot-over-trials .main-svg").first).to_be_visible()
        assert page.evaluate("window.sameDocument")

        page.get_by_role("button", name="Pause", exact=True).click()
        expect(page.locator("#state")).to_have_text("paused")
        page.get_by_text("Budget and priority").click()
        page.fill("#priority", "3")
        page.get_by_role("button", name="Set priority").click()
        expect(page.locator("#facts")).to_contain_text("Priority3")

        page.get_by_role("button", name="Build library").click()
        link = page.get_by_role("link", name="Download .tar.gz")
        expect(link).to_be_visible()
        with page.expect_download() as started:
            link.press("Enter")  # new rows above would move the link away from a pointer
        content = started.value.path().read_bytes()
        shown = page.locator("#libraries code").inner_text()
        assert hashlib.sha256(content).hexdigest() == shown
        page.get_by_role("button", name="Resume", exact=True).click()
        expect(page.locator("#state")).to_have_text(re.compile("queued|running"))


@pytest.mark.slow("follows a live page for many seconds")
def test_sorting_changes_the_table_and_not_the_page(visitor: Visitor, service: Service) -> None:
    """A click on a heading sorts, a second one reverses, and Back restores the order."""
    submit(service, "sorted")
    wait_for_state(service, 1, "done")
    with visitor.tab() as tab:
        page = tab.page
        page.goto("/jobs/1")
        page.evaluate("window.sameDocument = true")
        page.click("#sort-weight")
        expect(page.locator("th[aria-sort=descending]")).to_have_text(re.compile("Calls"))
        assert _column(page, 3) == sorted(_column(page, 3), key=int, reverse=True)
        page.click("#sort-weight")
        expect(page.locator("th[aria-sort=ascending]")).to_have_text(re.compile("Calls"))
        assert _column(page, 3) == sorted(_column(page, 3), key=int)
        page.go_back()
        expect(page.locator("th[aria-sort=descending]")).to_have_text(re.compile("Calls"))
        assert page.evaluate("window.sameDocument")


@pytest.mark.slow("half a minute: the service starts again")
def test_a_page_recovers_after_an_outage(visitor: Visitor, service: Service) -> None:
    """An open page reports that the service is offline, and is live again once it is back."""
    submit(service, "interrupted", trials=600)
    with visitor.tab(expect_clean_console=False) as tab:
        page = tab.page
        page.goto("/jobs/1")
        expect(page.locator("#live-text")).to_have_text("Live")
        page.evaluate("window.sameDocument = true")
        _wait_for_trials(page, 4)
        service.stop("api")
        expect(page.locator("#live-text")).to_have_text(re.compile("reconnecting|retrying"))
        service.start_api()
        expect(page.locator("#live-text")).to_have_text("Live")
        _wait_for_trials(page, _trials(page) + 8)
        assert page.evaluate("window.sameDocument")


@pytest.mark.slow("follows a live page for many seconds")
def test_updates_can_be_paused(visitor: Visitor, service: Service) -> None:
    """The numbers of a page stay while updates are paused."""
    submit(service, "held", trials=600)
    with visitor.tab() as tab:
        page = tab.page
        page.goto("/jobs/1")
        _wait_for_trials(page, 4)
        page.get_by_role("button", name="Pause updates").click()
        page.wait_for_timeout(300)
        before = _trials(page)
        page.wait_for_timeout(2500)
        assert _trials(page) == before
        page.get_by_role("button", name="Resume updates").click()
        _wait_for_trials(page, before + 1)


def test_the_list_of_jobs_is_updated(reader: Visitor, tuned: Service) -> None:
    """A job that another user submits appears in the list."""
    with reader.tab() as tab:
        page = tab.page
        page.goto("/")
        page.get_by_text("New job").click()
        page.fill("#name", "half typed")
        submit(tuned, "from elsewhere", batch=3)
        expect(page.get_by_role("link", name="from elsewhere")).to_be_visible()
        assert page.input_value("#name") == "half typed"


@pytest.mark.slow("follows a live page for many seconds")
def test_an_invalid_form_is_explained(visitor: Visitor, service: Service, tmp_path: Path) -> None:
    """A rejected form keeps its texts, and the error names the field."""
    with visitor.tab(expect_clean_console=False) as tab:
        page = tab.page
        page.goto("/")
        page.set_input_files("#model", model_file(tmp_path))
        page.fill("#name", "kept")
        page.fill("#trials", "many")
        page.get_by_role("button", name="Submit job").click()
        expect(page.get_by_role("alert")).to_contain_text("trials")
        expect(page.locator("#trials")).to_have_attribute("aria-invalid", "true")
        assert page.input_value("#name") == "kept"
        submit(service, "submitted later")
        expect(page.get_by_role("link", name="submitted later")).to_be_visible()
        expect(page.get_by_role("alert")).to_be_visible()
        # The browser logs the status, and nothing else may be logged.
        assert all("422" in complaint for complaint in tab.messages)


@pytest.mark.slow("follows a live page for many seconds")
def test_a_rejected_action_is_explained_on_a_live_page(visitor: Visitor, service: Service) -> None:
    """The reason stays visible, the page stays live, and a reload does not send the form again."""
    submit(service, "long", trials=600)
    with visitor.tab(expect_clean_console=False) as tab:
        page = tab.page
        page.goto("/jobs/1")
        page.get_by_text("Budget and priority").click()
        page.fill("#limits #trials", "-5")
        page.get_by_role("button", name="Raise budget").click()
        expect(page.get_by_role("alert")).to_contain_text("trials")
        expect(page).to_have_url(re.compile(r"/jobs/1$"))
        _wait_for_trials(page, _trials(page) + 4)
        expect(page.get_by_role("alert")).to_be_visible()
        page.reload()
        expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.slow("follows a live page for many seconds")
def test_two_jobs_are_compared(browser: Browser, tuned: Service) -> None:
    """Two jobs are shown side by side, with latencies, curves and every workload of either."""
    with Visitor(browser, tuned.url).tab() as tab:
        page = tab.page
        page.goto("/jobs/1")
        page.get_by_role("link", name="Compare…").click()
        expect(page.locator("#a")).to_have_value("1")
        page.select_option("#b", "2")
        page.get_by_role("button", name="Compare", exact=True).click()
        expect(page.locator("#verdict")).to_contain_text("A is faster in")
        expect(page.locator("#plot-over-trials .main-svg").first).to_be_visible()
        # Three workloads are in both networks, and one more in each.
        expect(page.locator("#differences tbody tr")).to_have_count(5)
        expect(page.locator("#differences")).to_contain_text("not in A")


def test_a_theme_is_remembered(reader: Visitor) -> None:
    """The button cycles through the themes, and the choice outlives the page."""
    with reader.tab(color_scheme="light") as tab:
        page = tab.page
        page.goto("/workers")
        light = _background(page)
        page.click("#theme")
        page.click("#theme")
        assert _background(page) != light
        page.goto("/records")
        expect(page.locator("#theme")).to_have_text("Theme: dark")
        assert _background(page) != light


def _column(page: Page, number: int) -> list[str]:
    cells = page.locator(f"#tasks tbody tr > :nth-child({number})")
    return [text.strip() for text in cells.all_inner_texts()]


def _trials(page: Page) -> int:
    text = page.locator("#figures > div").nth(1).locator(".big").inner_text()
    return int(text.split()[0].replace(",", ""))


def _wait_for_trials(page: Page, number: int) -> None:
    page.wait_for_function(
        """number => parseInt(document.querySelectorAll("#figures .big")[1]
           .textContent.replace(/,/g, "")) >= number""",
        arg=number,
    )


def _background(page: Page) -> str:
    colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return colour


def test_the_reference_sends_requests(reader: Visitor) -> None:
    """A form of the reference sends its request and shows the response."""
    with reader.tab(expect_clean_console=False) as tab:
        page = tab.page
        page.goto("/reference#read_job")
        form = page.locator("#read_job form")
        form.locator("[name=job_id]").fill("99")
        form.locator("button").click()
        form.locator(".answer strong", has_text="404").wait_for()

        assert "no job 99" in form.locator(".answer pre").inner_text()
