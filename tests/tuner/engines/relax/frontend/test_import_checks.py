"""A graph that the importer reads otherwise than ONNX is refused before it is lowered."""

from collections.abc import Callable
from typing import Any

import onnx
import pytest
from onnx import helper
from tvm import relax

from tests.tuner.engines.relax.conftest import Save
from tuner.engines.base import TargetInfo
from tuner.engines.relax import worker
from tuner.engines.relax.frontend.converters import CONVERTERS
from tuner.errors import ModelError


def _misread(change: Callable[[Any], relax.Expr]) -> Callable[..., relax.Expr]:
    """Return a converter that makes something else of its first operand."""

    def convert(builder: Any, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
        del builder, attrs, opset
        return change(inputs[0])

    return convert


@pytest.mark.parametrize(
    ("change", "last", "text"),
    [
        (
            lambda data: relax.op.strided_slice(data, [3], [0], [5]),
            "GlobalAveragePool",
            "'value' is float32[1,2,4,5], and ONNX says float32[1,2,4,6]",
        ),
        (
            lambda data: relax.op.astype(data, "float64"),
            "",
            "'y' is float64[1,2,4,6], and ONNX says float32[1,2,4,6]",
        ),
    ],
)
def test_a_value_of_another_kind_is_refused(
    save: Save,
    target: TargetInfo,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Any], relax.Expr],
    last: str,
    text: str,
) -> None:
    """The shape of a value counts though no output shows it, and the type of an output."""
    monkeypatch.setitem(CONVERTERS, "Relu", _misread(change))
    nodes = [helper.make_node("Relu", ["data"], ["value" if last else "y"])]
    nodes += [helper.make_node(last, ["value"], ["y"])] if last else []

    with pytest.raises(ModelError) as caught:
        worker.extract(save(nodes, (1, 2, 4, 6), {}), target.spec)

    assert caught.value.code == "misread-operator"
    assert f"operator Relu was read as one whose output {text}" in str(caught.value)


def test_wrong_shapes_of_outputs_in_the_file_are_ignored(save: Save, target: TargetInfo) -> None:
    """Other runtimes warn of them; the operators tell the shapes."""
    path = save([helper.make_node("Relu", ["data"], ["y"])], (1, 2, 4, 6), {})
    model = onnx.load(path.path)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, (1, 2, 4, 6, 1)))
    onnx.save(model, path.path)

    assert [task.name for task in worker.extract(path, target.spec).tasks] == ["relu[1x2x4x6]"]
