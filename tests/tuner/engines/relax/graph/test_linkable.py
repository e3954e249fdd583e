"""Operators that cannot be linked are refused when a network is split, in plain words."""

import numpy as np
import pytest
from onnx import helper
from tvm import relax

from tests.tuner.engines.relax.conftest import Save
from tuner.engines.base import TargetInfo
from tuner.engines.relax import worker
from tuner.engines.relax.graph.linkable import check_linkable
from tuner.errors import LinkError, ModelError, WorkError, described


def test_an_operator_without_a_kernel_is_named_with_its_shape() -> None:
    """An operator of Relax that stayed in the lowered module is refused."""
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((1, 8, 4, 4), "float32"))
    with builder.function("main", [data]):
        weight = relax.const(np.zeros((8, 2, 2, 2), "float32"))
        builder.emit_func_output(builder.emit(relax.op.nn.conv2d_transpose(data, weight)))

    with pytest.raises(ModelError) as caught:
        check_linkable(builder.get())

    assert caught.value.code == "unsupported-operator"
    assert "nn.conv2d_transpose (ConvTranspose in ONNX)" in str(caught.value)
    assert "float32[1,2,5,5]" in str(caught.value)


@pytest.mark.parametrize("before", ["Sqrt", "Pow", "Softmax", "Reshape"])
def test_a_shape_that_depends_on_data_is_refused(
    save: Save, target: TargetInfo, before: str
) -> None:
    """The message says what to export instead, and has a code, whatever follows the shape."""
    constants = {"Pow": np.array(2.0, "float32"), "Reshape": np.array([-1])}
    weights = {"w": constants[before]} if before in constants else {}
    nodes = [
        helper.make_node("NonZero", ["data"], ["n"]),
        helper.make_node("Cast", ["n"], ["f"], to=1),
        helper.make_node(before, ["f", *weights], ["g"]),
        helper.make_node("ReduceSum", ["g"], ["y"], keepdims=0),
    ]

    with pytest.raises(ModelError) as caught:
        worker.extract(save(nodes, (4, 5), weights), target.spec)

    assert caught.value.code == "data-dependent-shape"
    assert "export the model without" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_an_operator_between_shapes_is_refused_as_data(save: Save, target: TargetInfo) -> None:
    """The importer computes the declared shape of NonMaxSuppression from its result."""
    nodes = [
        helper.make_node("Reshape", ["data", "flat"], ["scores"]),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "n"], ["places"]),
        helper.make_node("Cast", ["places"], ["y"], to=1),
    ]
    weights = {
        "flat": np.array([1, 1, 6]),
        "boxes": np.zeros((1, 6, 4), "float32"),
        "n": np.array([3]),
    }

    with pytest.raises(ModelError, match="NonMaxSuppression") as caught:
        worker.extract(save(nodes, (6,), weights), target.spec)

    assert caught.value.code == "data-dependent-shape"


def test_text_of_the_compiler_goes_to_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """An unexpected error is replaced; errors of this package and of memory pass."""
    with (
        pytest.raises(LinkError, match=r"^it failed, and the reason is unknown \[not-linked\]$"),
        described(lambda reason: LinkError(f"it failed{reason}")),
    ):
        raise ValueError("# Metadata omitted. Use show_meta=True in script() method.")
    assert "Metadata omitted" in capsys.readouterr().err

    for error in (WorkError("known"), OSError("full"), RuntimeError("std::bad_alloc")):
        with pytest.raises(type(error)), described(LinkError):
            raise error


def test_an_operator_that_cannot_be_converted_is_named(save: Save, target: TargetInfo) -> None:
    """The message has the operator and its shapes, without text of the importer."""
    nodes = [
        helper.make_node("Cast", ["data"], ["sizes"], to=7),
        helper.make_node("Resize", ["data", "", "", "sizes"], ["y"], mode="cubic"),
    ]

    with pytest.raises(ModelError) as caught:
        worker.extract(save(nodes, (1,), {}), target.spec)

    assert caught.value.code == "unsupported-operator"
    assert "operator Resize with inputs float32[1], none, none, int64[1]" in str(caught.value)


def test_a_dimension_that_no_index_reaches_is_refused(save: Save, target: TargetInfo) -> None:
    """A few bytes ask for 2^31 columns, which the compiler notices after the lowering."""
    nodes = [helper.make_node("Expand", ["data", "shape"], ["y"])]

    with pytest.raises(ModelError, match="cannot be lowered to kernels") as caught:
        worker.extract(save(nodes, (1, 3, 1), {"shape": np.array([2**31])}), target.spec)

    assert caught.value.code == "not-lowered"
