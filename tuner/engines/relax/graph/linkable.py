"""Check of a lowered network: everything that it calls can be linked."""

from typing import Any

import tvm
from tvm import relax

from tuner.engines.relax.ir.tensor_types import is_fixed, is_number
from tuner.errors import ModelError

# What the code generation of the glue between kernels emits, besides calls of kernels.
_EMITTED = {"relax.call_tir", "relax.shape_to_tensor"}
# Names that ONNX and torch use for operators whose name in Relax differs by more than its case.
_KNOWN_AS = {
    "nn.conv1d_transpose": "ConvTranspose",
    "nn.conv2d_transpose": "ConvTranspose",
    "nn.conv3d_transpose": "ConvTranspose",
    "vision.all_class_non_max_suppression": "NonMaxSuppression",
    "dynamic_strided_slice": "Slice with bounds that depend on data",
    "nonzero": "NonZero",
}


def check_linkable(module: tvm.IRModule) -> None:
    """Check that ``main`` of a lowered module holds nothing but calls that the link step emits.

    Raises:
        ModelError: If an operator has no kernel, or a shape depends on data; the message names
            the operator and the shape.
    """
    calls: list[relax.Call] = []

    def visit(expr: relax.Expr) -> None:
        # An exception that passes through TVM would lose its class.
        if isinstance(expr, relax.Call):
            calls.append(expr)

    relax.analysis.post_order_visit(module["main"], visit)
    for call in calls:
        name = _name(call)
        if name and name not in _EMITTED and not name.startswith("vm.builtin."):
            raise _without_kernel(name.removeprefix("relax.").removeprefix("run."), call)
        if name == "relax.call_tir" and not is_fixed(call.ty):
            raise _depends_on_data(f"the output of {call.args[0].name_hint}", call)


def _name(call: relax.Call) -> str:
    """Return the operator, or the library function that is called instead of one."""
    name = str(getattr(call.op, "name", ""))
    return str(call.args[0].global_symbol) if name == "relax.call_pure_packed" else name


def _without_kernel(name: str, call: relax.Call) -> ModelError:
    if isinstance(call.ty, relax.ShapeType):
        return ModelError(
            "the model computes a shape from its data, as that behind NonZero, Compress, Unique "
            "and NonMaxSuppression: export it without these operators, and apply them to the "
            "outputs of the library",
            code="data-dependent-shape",
        )
    known_as = f" ({_KNOWN_AS[name]} in ONNX)" if name in _KNOWN_AS else ""
    if not is_fixed(call.ty):
        return _depends_on_data(f"the output of operator {name}{known_as}", call)
    return ModelError(
        f"operator {name}{known_as} with output {describe(call.ty)} has no kernel: replace it "
        "in the model, or export the model up to it",
        code="unsupported-operator",
    )


def _depends_on_data(subject: str, call: relax.Call) -> ModelError:
    return ModelError(
        f"{subject} has a shape that depends on the data ({describe(call.ty)}): export the model "
        "without the operators that choose among their inputs (NonZero, Compress, Unique, "
        "NonMaxSuppression), and apply them to the outputs of the library",
        code="data-dependent-shape",
    )


def describe(kind: Any) -> str:
    """Return a type in the notation ``float32[1,3,?]``."""
    if isinstance(kind, relax.TupleType):
        return ", ".join(describe(field) for field in kind.fields)
    if not isinstance(kind, relax.TensorType):
        return "a value that is not a tensor"
    if kind.shape is None:
        return f"{kind.dtype}[?]"
    dims = (str(int(dim)) if is_number(dim) else "?" for dim in kind.shape)
    return f"{kind.dtype}[{','.join(dims)}]"
