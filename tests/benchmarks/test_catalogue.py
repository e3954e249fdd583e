"""The list of the corpus is large, varied and consistent."""

import ast
from collections import Counter
from pathlib import Path
from typing import get_args

from benchmarks.corpus.catalogue import ENTRIES, entry_named
from benchmarks.corpus.entries import Entry, Exported, Kind, Packaged, Quantised
from benchmarks.corpus.files import is_made, mark_made, model_file

_ROOT = Path(__file__).parents[2]


def test_the_corpus_is_large_and_varied() -> None:
    """It has at least 80 networks, and some of each kind."""
    kinds = Counter(entry.kind for entry in ENTRIES)

    assert len(ENTRIES) >= 80
    assert set(kinds) == set(get_args(Kind))


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


def test_a_file_is_made_again_when_its_entry_changes(tmp_path: Path) -> None:
    """The stamp beside a file names what it was made from."""
    before = Entry("a", "classification", Packaged("a==1", "a.onnx"))
    after = Entry("a", "classification", Packaged("a==2", "a.onnx"))
    file = model_file(tmp_path, before)
    file.parent.mkdir()
    file.write_bytes(b"")
    mark_made(tmp_path, before)

    assert is_made(tmp_path, before)
    assert not is_made(tmp_path, after)
