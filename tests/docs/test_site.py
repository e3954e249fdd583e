"""The site of the documentation builds without warnings, is complete, and loads no foreign file."""

import re
import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

import tuner
from api.app import create_app
from api.settings import ApiSettings
from tests.docs.documents import ROOT
from tuner.cli.main import make_program
from tuner.settings import Settings

# Pages that do one task each, for a reader who has just arrived.
_TASKS = (
    *("tutorial-cpu", "deploy", "team", "gpu-machine"),
    *("ci", "slow-kernels", "move-records"),
)


class _Page(HTMLParser):
    """Addresses that a page links to, and those that a browser loads with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a":
            self.links.add(values.get("href") or "")
        else:
            self.loaded |= {values.get(name) or "" for name in ("src", "href", "data", "srcset")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    # Packages of MkDocs use what Python will drop.
    with warnings.catch_warnings(action="ignore"):
        config = load_config(str(ROOT / "website/mkdocs.yml"), strict=True, site_dir=str(folder))
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
    return folder


@pytest.mark.in_ci
@pytest.mark.slow("10 s: loads every page")
def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    """Scripts, styles, fonts and images come with the site; style sheets name no other host."""
    pages = {page: _Page(page.read_text()) for page in site.rglob("*.html")}

    elsewhere = {
        (page.name, address)
        for page, parsed in pages.items()
        for address in parsed.loaded
        if "//" in address
    }
    assert pages
    assert not elsewhere
    styles = [css.read_text() for css in site.rglob("*.css")]
    assert not [css for css in styles if re.search(r"url\([\"']?(https?:)?//", css)]


@pytest.mark.parametrize("task", _TASKS)
def test_the_first_page_leads_to_a_page_for_each_task(site: Path, task: str) -> None:
    """A new reader needs one click."""
    assert f"{task}/" in _Page((site / "index.html").read_text()).links


def test_every_command_has_its_options(site: Path) -> None:
    """The page of commands has each option of the parser in a table."""
    text = (site / "cli" / "index.html").read_text()
    sections = dict(re.findall(r'<h2 id="tuner-([\w-]+)">(.*?)(?=<h2 id=|\Z)', text, re.DOTALL))

    missing = [
        f"{name} {option}"
        for name, command in _commands(make_program(), "")
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
        and option not in ("--quiet", "--verbose")
        and f"<code>{option}</code>" not in sections[name]
    ]
    assert not missing


def test_every_function_and_operation_is_in_the_reference(site: Path) -> None:
    """Names of ``tuner`` and operations of the OpenAPI document have a heading."""
    functions = (site / "python-functions" / "index.html").read_text()
    operations = (site / "rest-operations" / "index.html").read_text()
    settings = Settings("sqlite://", Path(), "tuner.engines.relax", 1)
    paths: dict[str, dict[str, Any]] = create_app(ApiSettings(settings)).openapi()["paths"]

    names = set(tuner.__all__) - {"__version__", "plot"}
    assert {name for name in names if f'id="tuner.api.{name}"' not in functions} == set()
    ids = {each["operationId"] for methods in paths.values() for each in methods.values()}
    assert {name for name in ids if f'<h3 id="{name}">' not in operations} == set()


def _commands(command: Any, name: str) -> list[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        return [(name, command)]
    return [
        each
        for word, inner in command.commands.items()
        for each in _commands(inner, f"{name}-{word}".strip("-"))
    ]
