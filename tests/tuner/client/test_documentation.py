"""The examples of docs/client.md work."""

import re
from pathlib import Path

import pytest

from tests.cli import ROOT
from tests.services import Service
from tuner.client import TunerClient
from tuner.library import manifest
from tuner.schemas import JobSummary

_PAGE = (ROOT / "docs" / "client.md").read_text()


@pytest.mark.slow("tunes with a service for 15 s")
def test_the_examples_run(
    service: Service,
    done: JobSummary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The examples run one after the other with a service."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}

    for block in re.findall(r"^```python\n(.*?)^```", _PAGE, re.DOTALL | re.MULTILINE):
        code = block.replace("http://127.0.0.1:8080", service.url)
        exec(code.replace("events(1)", f"events({done.id})"), namespace)

    manifest.verify(tmp_path / "mlp.lib", manifest.read(tmp_path / "mlp.lib"))
    assert "heavy[1] 3" in capsys.readouterr().out


def test_every_method_is_listed() -> None:
    """The page names every method of the client."""
    methods = {name for name in vars(TunerClient) if not name.startswith("_")} - {"close"}
    listed = set(re.findall(r"`(\w+)[`(]", _PAGE))

    assert methods - listed == set()
