"""docs/architecture.md agrees with the import contracts and with the names in the code."""

import tomllib

from tests.docs.documents import ROOT, section


def test_the_layers_are_those_of_the_contract() -> None:
    """The list of layers equals the one that import-linter checks."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (layers,) = [
        contract["layers"]
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    ]
    text = section((ROOT / "docs" / "architecture.md").read_text(), "Layers")

    assert text.split("```text\n")[1].split("```")[0].splitlines() == layers
