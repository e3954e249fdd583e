"""Exported torch programs load with their shapes, if torch is installed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuner.errors import ModelError
from tuner.networks.load import find_dynamic_dimensions, load_network
from tuner.networks.shapes import DynamicDimension

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


def test_dynamic_dimensions_of_a_program_get_sizes(tmp_path: Path) -> None:
    """They are named by their input; the hash tells sizes apart, and the bytes stay those given."""
    path = export(tmp_path / "d.pt2", dynamic=True)

    (dimension,) = find_dynamic_dimensions(path)
    three, five = (load_network(path, sizes={"input.0": size}) for size in (3, 5))

    assert dimension == DynamicDimension("input.0", {"input": (0,)})
    assert three.model == five.model == Path(path).read_bytes()
    assert three.sha256 != five.sha256
    assert [spec.shape for spec in five.outputs.values()] == [(5, 3)]
    assert load_network(path, {"input": (3, 4)}) == three


def test_a_size_outside_of_the_ranges_of_a_program_is_refused(tmp_path: Path) -> None:
    """Torch knows the ranges that the program was exported with."""
    shapes = ({0: torch.export.Dim("batch", min=2, max=8)},)
    program = torch.export.export(torch.nn.ReLU(), (torch.zeros(4, 3),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "r.pt2")

    with pytest.raises(ModelError, match=r"cannot fix the dynamic dimensions at input \[9, 3\]"):
        load_network(str(tmp_path / "r.pt2"), sizes={"input.0": 9})


@pytest.mark.parametrize(
    ("forward", "value"),
    [
        (lambda x: torch.nonzero(x).float(), "nonzero"),
        (lambda x: x[x > 0].sum(), "index"),
        (lambda x: torch.unique(x).float(), "getitem"),
    ],
)
def test_a_shape_that_depends_on_the_data_is_refused(
    tmp_path: Path, forward: Callable[[Any], Any], value: str
) -> None:
    """The message names the value."""
    module = torch.nn.Module()
    module.forward = forward
    torch.export.save(torch.export.export(module, (torch.zeros(3, 4),)), tmp_path / "u.pt2")

    with pytest.raises(ModelError, match=f"the shape of '{value}.*' depends on the data") as caught:
        load_network(str(tmp_path / "u.pt2"))
    assert caught.value.code == "data-dependent-shape"


def test_bad_programs(tmp_path: Path) -> None:
    """Open shapes, other shapes, and other archives are refused."""
    static = export(tmp_path / "m.pt2")
    with pytest.raises(ModelError, match="fixed at 2"):
        load_network(static, {"input": (3, 4)})
    with pytest.raises(ModelError, match=r"shape must be fixed for input 'input'.*\(input.0, 4\)"):
        load_network(export(tmp_path / "d.pt2", dynamic=True))
    cut = tmp_path / "cut.pt2"
    cut.write_bytes(Path(static).read_bytes()[:2000])
    with pytest.raises(ModelError, match=r"write it with torch.export.save"):
        load_network(str(cut))
