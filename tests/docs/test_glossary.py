"""docs/glossary.md names the public classes of the core loop, and no class that does not exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.documents import ROOT

_TEXT = (ROOT / "docs" / "glossary.md").read_text()
_CORE = (
    "tuner/tuning",
    "tuner/measure",
    "tuner/devices",
    "tuner/jobs",
    "tuner/service",
    "tuner/executors/base.py",
    "scheduler",
)
_SOURCES = ("tuner", "scheduler", "records", "api")


def _modules(name: str) -> list[Path]:
    path = ROOT / name
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def _classes(module: Path) -> Iterator[str]:
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def _named() -> set[tuple[str, str]]:
    """Return the classes that the tables of the glossary name, with their modules."""
    return set(re.findall(r"^\| `(\w+)` \| `([\w./]+)` \| .+ \|$", _TEXT, re.MULTILINE))


@pytest.mark.parametrize("name", _CORE)
def test_the_glossary_names_every_public_class(name: str) -> None:
    """Each public class has a row with its module."""
    public = {
        (class_name, str(module.relative_to(ROOT)))
        for module in _modules(name)
        for class_name in _classes(module)
    }

    assert public - _named() == set()


def test_a_row_of_the_glossary_names_a_class_of_its_module() -> None:
    """No row is left over after a class was renamed, moved or deleted."""
    outdated = {
        (name, module)
        for name, module in _named()
        if not (ROOT / module).exists() or name not in _classes(ROOT / module)
    }

    assert outdated == set()


def test_classes_in_backticks_exist() -> None:
    """A capitalised name in backticks is a class of the source tree."""
    existing = {
        name for source in _SOURCES for module in _modules(source) for name in _classes(module)
    }

    assert set(re.findall(r"`([A-Z][a-z]\w*)`", _TEXT)) - existing == set()
