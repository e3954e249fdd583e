"""The notebooks of the examples run."""

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

import tuner
from tests.docs.documents import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_calls_of_a_notebook_fit_their_functions(path: Path) -> None:
    """Every function of the package that it calls exists and takes the arguments."""
    cells = _code(json.loads(path.read_text()))
    nodes = [node for cell in cells for node in ast.walk(ast.parse("".join(cell["source"])))]
    calls = [(ast.unparse(node.func), node) for node in nodes if isinstance(node, ast.Call)]
    ours = [(called, call) for called, call in calls if re.fullmatch(r"tuner(\.\w+)+", called)]
    assert ours
    for called, call in ours:
        function: Any = tuner
        for name in called.split(".")[1:]:
            function = getattr(function, name)
        named = {word.arg: None for word in call.keywords if word.arg}
        inspect.signature(function).bind(*call.args, **named)


@pytest.mark.slow("a minute of real tuning")
@pytest.mark.tvm
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path) -> None:
    """Every cell ends without an error and shows the kinds of output that are committed."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    committed = nbformat.read(path, as_version=4)
    notebook = nbformat.read(path, as_version=4)
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
