"""Links and paths in the documentation exist."""

import re
from pathlib import Path

import pytest

from tests.docs.documents import ROOT, documents

_PACKAGES = ("api", "benchmarks", "records", "scheduler", "tests", "tuner")


@pytest.mark.parametrize("page", documents(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_and_headings_exist(page: Path) -> None:
    """A relative link names an existing file and, with an anchor, one of its headings."""
    broken = [link for link in _links(page.read_text()) if not _leads_somewhere(page, link)]

    assert not broken


@pytest.mark.parametrize("page", documents(), ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_in_backticks_exist(page: Path) -> None:
    """A path of the source tree in backticks exists."""
    roots = r"(?:tuner|scheduler|records|benchmarks|tests|docs)"
    paths = re.findall(rf"`({roots}/[\w./-]+)`", page.read_text())

    # NAME is a placeholder.
    missing = [path for path in paths if not (ROOT / path).exists() and "NAME" not in path]
    assert not missing


def test_decisions_that_code_names_exist() -> None:
    """Comments and docstrings name existing decisions only."""
    known = {path.name[:4] for path in (ROOT / "docs" / "decisions").iterdir()}
    sources = [path for top in _PACKAGES for path in (ROOT / top).rglob("*.py")]
    pattern = re.compile(r"(?:docs/decisions/|\bADR |\bdecision )(\d{4})")
    named = {(path, number) for path in sources for number in pattern.findall(path.read_text())}

    assert named
    assert [each for each in named if each[1] not in known] == []


def test_the_index_links_every_document() -> None:
    """A reader finds each page of docs/ from docs/index.md, and decisions in their folder."""
    index = ROOT / "docs" / "index.md"
    linked = {
        (index.parent / link.partition("#")[0]).resolve() for link in _links(index.read_text())
    }
    pages = set((ROOT / "docs").rglob("*.md")) - {index} - set((ROOT / "docs/decisions").iterdir())

    assert pages - linked == set()


def _links(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def _leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if not target.exists():
        return False
    return not anchor or anchor in _anchors(target.read_text())


def _anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
