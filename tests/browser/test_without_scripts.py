"""The dashboard without JavaScript: links, forms and reloads suffice."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import PATIENCE, Visitor, model_file, wait_for_state
from tests.services import Service

expect.set_options(timeout=PATIENCE)


@pytest.mark.slow("follows a live page for many seconds")
def test_a_job_without_scripts(visitor: Visitor, service: Service, tmp_path: Path) -> None:
    """A job is submitted, read, sorted, built, compared and deleted without scripts."""
    with visitor.tab(java_script_enabled=False) as tab:
        page = tab.page
        page.goto("/")
        page.set_input_files("#model", model_file(tmp_path))
        page.fill("#trials", "24")
        page.get_by_role("button", name="Submit job").click()
        expect(page).to_have_url(re.compile(r"/jobs/1$"))
        wait_for_state(service, 1, "done")
        page.reload()
        expect(page.locator("#state")).to_have_text("done")

        page.click("#sort-name")
        expect(page).to_have_url(re.compile(r"sort=name$"))
        names = page.locator("#tasks tbody th").all_inner_texts()
        assert names == sorted(names)

        page.get_by_text("Show the numbers as a table").first.click()
        expect(page.locator("#table-over-trials tbody tr").first).to_be_visible()
        page.get_by_role("button", name="Build library").click()
        expect(page.locator("#libraries tbody tr")).to_have_count(1)

        page.get_by_role("button", name="Theme: auto").click()
        expect(page).to_have_url(re.compile(r"/jobs/1$"))
        expect(page.locator("html")).to_have_attribute("data-theme", "light")

        page.get_by_role("link", name="Delete…").click()
        expect(page.get_by_role("heading", name="Delete job 1?")).to_be_visible()
        page.get_by_role("button", name="Delete job").click()
        expect(page).to_have_url(re.compile(r":\d+/$"))
        expect(page.get_by_text("No jobs yet.")).to_be_visible()
