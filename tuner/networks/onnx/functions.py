"""Inlining of the function bodies that the ONNX standard or the model gives for some operators.

Importers lack many of the operators of the standard, and engines know every operator of the bodies.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import onnx
import onnx.inliner

from tuner.errors import ModelError
from tuner.networks.onnx.foreign import STANDARD_DOMAINS, is_foreign
from tuner.networks.onnx.graph import nodes_within
from tuner.networks.onnx.node_builder import opset_of
from tuner.networks.onnx.onnx_file import check_size

# The largest exports of language models have some tens of thousands.
_MAX_NODES = 250_000
_MAX_SUBGRAPHS = 5_000
# The inliner of onnx refuses more.
_MAX_LEVELS = 100

# Operators that importers lack; the others with a body are converted as they are.
_OPERATORS = (
    "Attention",
    "BlackmanWindow",
    "CausalConvWithState",
    "Celu",
    "CenterCropPad",
    "HammingWindow",
    "HannWindow",
    "LinearAttention",
    "NegativeLogLikelihoodLoss",
    "RotaryEmbedding",
    "SoftmaxCrossEntropyLoss",
    "SwiGLU",
    "Swish",
)
# Functions of a model by domain, name and overload.
_Functions = dict[tuple[str, str, str], onnx.FunctionProto]


def inline_functions(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """Inline the operators of the main graph with a standard body that importers lack.

    Args:
        model: Valid model with fixed input shapes, by which some bodies are chosen.

    Returns:
        A new model, and the number of inlined operators; the given one if it has no such operator.
    """
    used = _count(model)
    if not used:
        return model, 0
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    _add_schema_defaults(inferred)
    # The inliner looks up the types of initialisers among the values.
    inferred.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in inferred.graph.initializer
    )
    # It looks up the type of an operand that is left out, by its empty name, as well.
    inferred.graph.value_info.append(
        onnx.helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, None)
    )
    named = [("", name) for name in used]
    inlined = onnx.inliner.inline_selected_functions(inferred, named, inline_schema_functions=True)
    return inlined, used.total() - _count(inlined).total()


def check_expansion(model: onnx.ModelProto) -> None:
    """Check that a model is of a bounded size once its functions are inlined.

    Functions that call others twice, over thirty levels, are a thousand million nodes.

    Raises:
        ModelError: If it is not, or its functions are nested too deeply.
    """
    functions = {(each.domain, each.name): each for each in model.functions}
    sizes: dict[tuple[str, str], _Expanded] = {}

    def expanded(graph: onnx.GraphProto | onnx.FunctionProto, level: int = 0) -> _Expanded:
        if level > _MAX_LEVELS:
            raise ModelError(
                f"the functions of the model call others over more than {_MAX_LEVELS} levels: "
                "export it without nested functions",
                code="too-large",
            )
        total = _Expanded(0, 0)
        for node in nodes_within(graph):
            key = (node.domain, node.op_type)
            if key not in functions:
                total += _Expanded(1, node.ByteSize())
                continue
            if key not in sizes:
                sizes[key] = _Expanded(1, 0)  # for a function that calls itself
                sizes[key] = expanded(functions[key], level + 1)
            total += sizes[key]
        return total

    size = expanded(model.graph)
    if size.n_nodes > _MAX_NODES:
        raise ModelError(
            f"the functions of the model stand for {size.n_nodes} operators, and a model may have "
            f"{_MAX_NODES}: export it without nested functions",
            code="too-large",
        )
    check_size(size.n_bytes, "the model with its functions inlined")


def check_subgraphs(model: onnx.ModelProto) -> None:
    """Check that a model has a bounded number of branches and bodies of loops.

    Each pass over a model visits all of them; those of nested Ifs double with each level.

    Raises:
        ModelError: If it has more.
    """
    attributes = (item for node in nodes_within(model.graph) for item in node.attribute)
    n_graphs = sum(len(item.graphs) + item.HasField("g") for item in attributes)
    if n_graphs > _MAX_SUBGRAPHS:
        raise ModelError(
            f"the model has {n_graphs} branches and bodies of loops, and a model may have "
            f"{_MAX_SUBGRAPHS}: export it without nested conditions",
            code="too-large",
        )


@dataclass(frozen=True)
class _Expanded:
    """Number and bytes of nodes after functions were inlined."""

    n_nodes: int
    n_bytes: int

    def __add__(self, other: "_Expanded") -> "_Expanded":
        return _Expanded(self.n_nodes + other.n_nodes, self.n_bytes + other.n_bytes)


def align_functions(model: onnx.ModelProto) -> None:
    """Give functions of a model its opset where none of their operators differs, in place.

    The inliner leaves functions of another opset than that of the model.
    """
    opset = opset_of(model)
    for function in model.functions:
        for item in function.opset_import:
            if item.domain in STANDARD_DOMAINS and all(
                version_of(node, item.version) == version_of(node, opset)
                for node in nodes_within(function)
                if not is_foreign(node)
            ):
                item.version = opset


def add_defaults(model: onnx.ModelProto) -> None:
    """Write attributes that calls of a model's functions leave out, in place.

    The inliner leaves an operator without the attribute that such a default is for.

    Raises:
        ModelError: If a call leaves out an attribute without a default that the function passes on
            to another one, whose default the inliner would drop.
    """
    functions = {(each.domain, each.name, each.overload): each for each in model.functions}
    for graph in (model.graph, *model.functions):
        for node in nodes_within(graph):
            if function := _callee(node, functions):
                _complete(node, function.attribute_proto)
                missing = {*function.attribute}.difference(item.name for item in node.attribute)
                # Most calls leave out none, and a model may call a function thousands of times.
                if missing and (lost := missing & _passed_on(function, functions)):
                    raise ModelError(
                        f"a call of {node.op_type} leaves out {', '.join(sorted(lost))}, which the "
                        "function passes on to another one: give it in the call",
                        code="unsupported-operator",
                    )


def _passed_on(function: onnx.FunctionProto, functions: _Functions) -> set[str]:
    """Return the attributes of a function that its body passes on to other functions."""
    return {
        item.ref_attr_name
        for node in nodes_within(function)
        if _callee(node, functions)
        for item in node.attribute
        if item.ref_attr_name
    }


def _callee(node: onnx.NodeProto, functions: _Functions) -> onnx.FunctionProto | None:
    """Return the function of the model that a node calls."""
    return functions.get((node.domain, node.op_type, node.overload))


def version_of(node: onnx.NodeProto, opset: int) -> int:
    """Return the opset that defined an operator as it is in another one; 0 if none has it."""
    try:
        return int(onnx.defs.get_schema(node.op_type, opset, "").since_version)
    except onnx.defs.SchemaError:
        return 0


def _count(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node if _is_listed(node))


def _is_listed(node: onnx.NodeProto) -> bool:
    return not is_foreign(node) and node.op_type in _OPERATORS


def _add_schema_defaults(model: onnx.ModelProto) -> None:
    """Write the defaults of attributes that are left out, which the inliner does not know."""
    opset = opset_of(model)
    for node in filter(_is_listed, nodes_within(model.graph)):
        schema = onnx.defs.get_schema(node.op_type, opset, "")
        _complete(node, (item.default_value for item in schema.attributes.values()))


def _complete(node: onnx.NodeProto, defaults: Iterable[onnx.AttributeProto]) -> None:
    given = {item.name for item in node.attribute}
    node.attribute.extend(item for item in defaults if item.type and item.name not in given)
