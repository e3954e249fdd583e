"""The notebook of the examples runs."""

from typing import Any

import pytest

from tests.docs.documents import ROOT

NOTEBOOK = ROOT / "examples" / "tune_and_compare.ipynb"


@pytest.mark.tvm
def test_the_notebook_runs() -> None:
    """Every cell ends without an error and shows the kinds of output that are committed."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    committed = nbformat.read(NOTEBOOK, as_version=4)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in _code(notebook):
        cell["outputs"] = []
        cell["source"] = cell["source"].replace("trials=32", "trials=12")

    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(ROOT)}}
    ).execute()

    assert [_kinds(cell) for cell in _code(notebook)] == [_kinds(cell) for cell in _code(committed)]


def _code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _kinds(cell: Any) -> set[str]:
    """Return the types of content that a cell shows."""
    return {kind for output in cell["outputs"] for kind in output.get("data", ())}
