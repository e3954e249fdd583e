"""Libraries are loaded by what is beside the engine that built them."""

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
    """What cannot be imported is named."""
    with pytest.raises(RequestError, match=r"built by tests\.engines\.toy, .*: No module named"):
        tuner.load(built)


def test_an_engine_may_be_a_module_of_no_package(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What loads its libraries is a module beside it, too."""
    manifest = json.loads((built / "manifest.json").read_text())
    (built / "manifest.json").write_text(json.dumps({**manifest, "engine": "alone"}))
    (tmp_path / "loading.py").write_text("def load(folder): return folder.name")
    monkeypatch.syspath_prepend(str(tmp_path))

    try:
        assert str(tuner.load(built)) == "mlp.lib"
    finally:
        sys.modules.pop("loading", None)
