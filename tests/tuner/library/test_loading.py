"""Loading of libraries by the engine that built them."""

import json
import sys
from pathlib import Path

import pytest

import tuner
from tests.engines import toy
from tuner.errors import RequestError


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A library of an engine without a compiler."""
    folder = tmp_path / "mlp.lib"
    tuner.build("zoo:mlp", folder, data_dir=tmp_path / "data", engine=toy.NAME)
    return folder


def test_an_engine_that_loads_nothing_says_why(built: Path) -> None:
    """The error names the module that cannot be imported."""
    with pytest.raises(RequestError, match=r"built by tests\.engines\.toy, .*: No module named"):
        tuner.load(built)


def test_an_engine_may_be_a_top_level_module(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its libraries are loaded by the top-level module ``loading``."""
    manifest = json.loads((built / "manifest.json").read_text())
    (built / "manifest.json").write_text(json.dumps({**manifest, "engine": "alone"}))
    (tmp_path / "loading.py").write_text("def load(folder): return folder.name")
    monkeypatch.syspath_prepend(str(tmp_path))

    try:
        assert str(tuner.load(built)) == "mlp.lib"
    finally:
        sys.modules.pop("loading", None)
