"""Hooks of MkDocs: generated pages, and links to files that are not pages."""

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from mkdocs.structure.files import File

from website.operations import operations_page
from website.options import add_options

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parents[1]
# Pages of the site by their files outside of docs/.
_OUTSIDE = {
    "README.md": "overview.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
}
_FOLDERS = {"docs/decisions": "decisions/index.md", "docs/results": "results/README.md"}
_LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")
_FUNCTIONS = (
    *("extract", "tune", "build", "evaluate", "profile", "load", "jit"),
    *("job", "best_records", "list_records"),
)


def on_config(config: "MkDocsConfig") -> None:
    """Replace the folders of the navigation by their pages."""
    config.nav = [_with_pages(item) for item in config.nav or ()]


def on_files(files: "Files", *, config: "MkDocsConfig") -> None:
    """Add the pages that are generated or lie elsewhere."""
    pages = {page: (_ROOT / source).read_text() for source, page in _OUTSIDE.items()}
    pages["decisions/index.md"] = _decisions_page()
    pages["rest-operations.md"] = operations_page()
    pages["python-functions.md"] = _functions_page()
    pages["site.css"] = (_ROOT / "website/site.css").read_text()
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))


def on_page_markdown(markdown: str, *, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Complete the page of commands, and let links lead to pages of the site or the repository."""
    del files
    site_path = page.file.src_uri
    if site_path == "index.md":  # has neither siblings nor sections
        page.meta["hide"] = ["navigation", "toc"]
    if site_path == "cli.md":
        markdown = add_options(markdown)
    sources = {target: source for source, target in _OUTSIDE.items()}
    source = sources.get(site_path, f"docs/{site_path}")

    def lead(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
        target = _OUTSIDE.get(path) or _FOLDERS.get(path)
        if target is None and not path.startswith("docs/") and (_ROOT / path).exists():
            kind = "tree" if (_ROOT / path).is_dir() else "blob"
            return f"{link[1]}{config.extra['source']}/{kind}/main/{path}{link[3] or ''}"
        target = target or path.removeprefix("docs/")
        return link[1] + posixpath.relpath(target, posixpath.dirname(site_path)) + (link[3] or "")

    return _LINK.sub(lead, markdown)


def _with_pages(item: Any) -> Any:
    if isinstance(item, dict):
        return {name: _with_pages(value) for name, value in item.items()}
    if isinstance(item, list):
        return [page for each in item for page in _pages_of(each)]
    return item


def _pages_of(item: Any) -> Iterator[Any]:
    if isinstance(item, str) and item.endswith("/"):
        if item == "decisions/":
            yield "decisions/index.md"
        docs = _ROOT / "docs"
        for path in sorted((docs / item).rglob("*.md")):
            yield str(path.relative_to(docs))
    else:
        yield _with_pages(item)


def _decisions_page() -> str:
    lines = ["# Decisions", "Why the tuner is as it is.", ""]
    for path in sorted((_ROOT / "docs/decisions").glob("*.md")):
        title = path.read_text().partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n\n".join(lines[:2]) + "\n".join(["\n", *lines[2:]])


def _functions_page() -> str:
    lines = [
        "# Python functions",
        "Signatures of the [Python API](python.md), and of the [client](client.md) of a service.",
        "## tuner",
        *(f"::: tuner.api.{name}" for name in _FUNCTIONS),
        "## tuner.plot",
        *(f"::: tuner.plot.{name}" for name in ("history", "trials", "roof", "compare")),
        "## tuner.client",
        "::: tuner.client.client.TunerClient",
    ]
    return "\n\n".join(lines)
