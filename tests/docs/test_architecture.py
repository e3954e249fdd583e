"""docs/architecture.md agrees with the import contracts and with the names in the code."""

import ast
import re
import tomllib

import pytest

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


def _flows() -> str:
    return section((ROOT / "docs" / "architecture.md").read_text(), "Three flows")


@pytest.mark.parametrize("hop", sorted(set(re.findall(r"`([\w/]+: \w+)`", _flows()))))
def test_a_hop_names_a_function_of_its_module(hop: str) -> None:
    """A reader who searches for the name of a hop finds it."""
    module, _, name = hop.partition(": ")
    paths = [ROOT / top / f"{module}.py" for top in (".", "tuner", "api")]
    (source,) = [path.read_text() for path in paths if path.is_file()]

    assert re.search(rf"^(async def|def|class) {name}\b", source, re.MULTILINE), hop


def test_methods_of_hops_exist() -> None:
    """A class in a list of hops has the method that is named with it."""
    methods: dict[str, set[str]] = {}
    for package in ("tuner", "api", "scheduler", "records"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    names = {getattr(item, "name", "") for item in node.body}
                    fields = {
                        item.target.id
                        for item in node.body
                        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                    }
                    methods.setdefault(node.name, set()).update(names, fields)

    named = set(re.findall(r"`(_?[A-Z]\w+)\.(\w+)`", _flows()))

    assert {f"{a}.{b}" for a, b in named if b not in methods.get(a, ())} == set()
