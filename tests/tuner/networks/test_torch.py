"""Exported torch programs load with their shapes, if torch is installed."""

from pathlib import Path
from typing import Any

import pytest

from tuner.errors import ModelError
from tuner.networks.load import load_network

torch: Any = pytest.importorskip("torch")


def export(path: Path, dynamic: bool = False) -> str:
    """Save a small exported program."""
    shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
    layers = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    program = torch.export.export(layers, (torch.zeros(2, 4),), dynamic_shapes=shapes)
    torch.export.save(program, path)
    return str(path)


def test_a_static_program_loads(tmp_path: Path) -> None:
    """The bytes are those of the file, and a matching request changes nothing."""
    path = export(tmp_path / "m.pt2")

    network = load_network(path)

    assert network.format == "pt2"
    assert network.model == Path(path).read_bytes()
    assert [spec.shape for spec in network.inputs.values()] == [(2, 4)]
    assert [spec.shape for spec in network.outputs.values()] == [(2, 3)]
    assert load_network(path, {next(iter(network.inputs)): (2, 4)}) == network


def test_bad_programs(tmp_path: Path) -> None:
    """Dynamic shapes, other shapes, and other archives are refused."""
    static = export(tmp_path / "m.pt2")
    with pytest.raises(ModelError, match="fixed at 2"):
        load_network(static, {"input": (3, 4)})
    with pytest.raises(ModelError, match="export it again without dynamic_shapes"):
        load_network(export(tmp_path / "d.pt2", dynamic=True))
    cut = tmp_path / "cut.pt2"
    cut.write_bytes(b"PK\x05\x06" + b"\0" * 18)
    with pytest.raises(ModelError, match=r"write it with torch.export.save"):
        load_network(str(cut))
