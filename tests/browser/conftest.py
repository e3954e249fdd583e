"""Chromium, and a service with a worker."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from tests.services import Service, running
from tests.tuner.networks.models import relu_model
from tests.waiting import wait_for
from tuner.client import TunerClient

CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
)
#: Time-out of a page, in milliseconds; a worker has to start first.
PATIENCE = 60_000
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 360, "height": 740}


@dataclass
class Tab:
    """A page of the dashboard with the messages of its console."""

    page: Page
    messages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.messages.append(message.text)


@dataclass(frozen=True)
class Visitor:
    """A browser that opens tabs on a service."""

    browser: Browser
    url: str

    @contextmanager
    def tab(self, *, expect_clean_console: bool = True, **options: Any) -> Iterator[Tab]:
        """Open a tab, and check that its console is empty at the end unless told not to."""
        chosen: dict[str, Any] = {"viewport": DESKTOP, "base_url": self.url, **options}
        context: BrowserContext = self.browser.new_context(**chosen)
        try:
            tab = Tab(context.new_page())
            tab.page.set_default_timeout(PATIENCE)
            yield tab
            assert not expect_clean_console or tab.messages == []
        finally:
            context.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium of Debian, for one module, because its event loop blocks those of other tests."""
    if not CHROMIUM.exists():
        pytest.skip(f"there is no Chromium at {CHROMIUM}: apt-get install chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        yield launched
        launched.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service slow enough to be watched."""
    with running(tmp_path, TOY_RUN_SECS="0.05") as started:
        yield started


@pytest.fixture
def visitor(browser: Browser, service: Service) -> Visitor:
    """A visitor of the service."""
    return Visitor(browser, service.url)


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with two tuned networks, for tests that do not change them."""
    with running(tmp_path_factory.mktemp("tuned")) as started:
        jobs = [submit(started, name, batch) for batch, name in ((1, "one"), (2, "<i>two</i>"))]
        for job in jobs:
            wait_for_state(started, job, "done")
        with TunerClient(started.url) as client:
            client.label(jobs[0], tags=["release", "vision"], note="Before <b>the</b>\ndriver.")
            client.record_code(1, "schedule", "source")
        yield started


@pytest.fixture
def reader(browser: Browser, tuned: Service) -> Visitor:
    """A visitor of the service with two tuned networks, which may have more."""
    return Visitor(browser, tuned.url)


def model_file(folder: Path, batch: int = 1) -> Path:
    """Write a small model."""
    path = folder / f"net{batch}.onnx"
    path.write_bytes(relu_model(batch, 4).SerializeToString())
    return path


def submit(service: Service, name: str, batch: int = 1, trials: int = 24) -> int:
    """Submit a job over REST."""
    model = ("net.onnx", relu_model(batch, 4).SerializeToString())
    answer = httpx.post(
        f"{service.url}/api/v1/tune",
        files={"model": model},
        data={"trials": str(trials), "name": name, "cost_model": "random", "trials_per_round": "4"},
        timeout=30,
        trust_env=False,
        verify=False,
    )
    assert answer.status_code in (200, 202), answer.text
    number: int = answer.json()["job"]["id"]
    return number


def wait_for_state(service: Service, job: int, state: str) -> None:
    """Wait until a job is in a state."""

    def is_there() -> bool:
        at = f"{service.url}/api/v1/jobs/{job}"
        view = httpx.get(at, timeout=30, trust_env=False, verify=False).json()
        return bool(view["job"]["state"] == state)

    wait_for(is_there)
