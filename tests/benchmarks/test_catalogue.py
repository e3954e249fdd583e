"""The list of the corpus is large, varied and consistent."""

import ast
from pathlib import Path

from benchmarks.corpus.catalogue import ENTRIES, entry_named
from benchmarks.corpus.entries import Exported, Packaged, Quantised

_ROOT = Path(__file__).parents[2]


def test_names_are_unique() -> None:
    """A name is that of one file and one result."""
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)


def test_versions_of_packages_are_pinned() -> None:
    """A file is the same in every run."""
    packages = [entry.source.package for entry in ENTRIES if isinstance(entry.source, Packaged)]

    assert all("==" in package for package in packages)


def test_factories_exist() -> None:
    """Every factory is in its module; torch need not be imported to see that."""
    for entry in ENTRIES:
        if isinstance(entry.source, Exported):
            module, _, factory = entry.source.factory.partition(":")
            code = ast.parse(_ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text())

            kinds = (ast.FunctionDef, ast.ClassDef)
            names = {node.name for node in code.body if isinstance(node, kinds)}
            assert factory in names, entry.name


def test_quantised_entries_name_another_entry() -> None:
    """The network that is quantised is in the corpus, and is not quantised itself."""
    for entry in ENTRIES:
        if isinstance(entry.source, Quantised):
            assert not isinstance(entry_named(entry.source.entry).source, Quantised)
