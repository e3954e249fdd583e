"""Cleaning of ONNX models: fixed shapes, folded constants, no operators for training."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import onnx
import onnx.inliner

from tuner.errors import ModelError, summary
from tuner.networks.base import Network, TensorSpec, network_hash
from tuner.networks.onnx import unknown_shapes
from tuner.networks.onnx.classical.operators import open_maps
from tuner.networks.onnx.contrib.contributed import correct_domains
from tuner.networks.onnx.contrib.quantised import replace_quantised
from tuner.networks.onnx.control_flow.branches import inline_constant_branches
from tuner.networks.onnx.control_flow.loops import check_loops, refuse_loops, unroll_loops
from tuner.networks.onnx.control_flow.selection import select_branches
from tuner.networks.onnx.control_flow.subgraphs import separate_names
from tuner.networks.onnx.folding.empty_values import drop_empty_values
from tuner.networks.onnx.folding.fixed_values import as_text, fix_values, split_values
from tuner.networks.onnx.folding.scales import fold_affine
from tuner.networks.onnx.functions import (
    add_defaults,
    align_functions,
    check_expansion,
    check_subgraphs,
    inline_functions,
)
from tuner.networks.onnx.graph import (
    check_model,
    clear_output_shapes,
    drop_unused_constants,
    has_fixed_shape,
    nodes_within,
)
from tuner.networks.onnx.inference import infer_shapes
from tuner.networks.onnx.inputs.onnx_limits import find_limits
from tuner.networks.onnx.inputs.random_draws import guard_random, refuse_random
from tuner.networks.onnx.inputs.value_limits import merged
from tuner.networks.onnx.node_builder import Tables, opset_of
from tuner.networks.onnx.onnx_file import check_size
from tuner.networks.onnx.operators.expansions import expand_operators
from tuner.networks.onnx.operators.first_axes import count_from_the_start
from tuner.networks.onnx.operators.operand_shapes import check_operands
from tuner.networks.onnx.opsets import raise_opset
from tuner.networks.onnx.repairs import add_output_types, repair
from tuner.networks.onnx.simplifying import simplify
from tuner.networks.onnx.tail import attach_tail, describe_tail, split_tail, trusted_shapes
from tuner.networks.shapes import Dims, fix_shapes

# Place in the C++ sources of onnx, with which the texts of failed assertions begin.
_ASSERTION = re.compile(r"^\S+:\d+: \w+: Assertion `.*` failed: ")
_UNDEFINED = re.compile(r"Nodes in a graph must be topologically sorted, however input (.*) of .*")
_NO_NUMBERS = (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)
_DTYPES = frozenset(onnx.TensorProto.DataType.values())
_SMALL_FLOATS = frozenset(
    code
    for name, code in onnx.TensorProto.DataType.items()
    if name.startswith(("FLOAT8", "FLOAT4"))
)
_QUANTISED = "rewrote {} quantised operators as float arithmetic"


def clean(
    model: onnx.ModelProto,
    inputs: Mapping[str, tuple[int, ...]] | None = None,
    *,
    name: str = "network",
    notes: tuple[str, ...] = (),
    sizes: Mapping[str, int] | None = None,
) -> Network:
    """Fix every shape of a model and simplify its graph without changing its outputs.

    Args:
        model: Model, which is not changed.
        inputs: Shapes for inputs with dynamic dimensions; values of inputs with one element, see
            :mod:`tuner.networks.onnx.folding.fixed_values`.
        name: Display name, not part of the hash.
        notes: Notes on earlier changes; those of this function are appended.
        sizes: Sizes of dynamic dimensions by name.

    Returns:
        The same network for the same model and shapes in any process: names of producers,
        documentation and metadata are removed, and the bytes have a fixed order.

    Raises:
        ModelError: If a shape cannot be fixed, the ONNX checker refuses the model, or the result
            would pass the 2 GB protobuf limit.
    """
    model = _prepare(model)
    notes += open_maps(model)
    requested, values = split_values(declared_inputs(model), inputs or {}, sizes or {})
    for info in model.graph.output:
        _dtype(info)
    fix_values(model, values)
    declared = declared_inputs(model)
    shapes = fix_shapes(declared, requested, sizes or {})
    # Kernels have at least one element, and what reads these inputs reads constants.
    empty = {key: shape for key, shape in shapes.items() if 0 in shape}
    fix_values(model, empty)
    _set_input_shapes(model, shapes)
    given = _copies(model.graph.input)
    correct_domains(model)
    _check(model)
    model = raise_opset(model)
    count_from_the_start(model)
    check_loops(model)
    fixed = [key for key in shapes if declared[key] != shapes[key]]
    notes += (
        *(f"fixed {key} to {'x'.join(map(str, shapes[key]))}" for key in fixed),
        *(f"fixed {key} to the value {as_text(value)}" for key, value in values.items()),
    )
    values |= empty
    declared_outputs = {} if fixed or values else _copies(model.graph.output)
    clear_output_shapes(model.graph)
    before = _count_operators(model)
    # Bodies of functions and replacements have operators that the model does not name.
    check_operands(infer_shapes(model))
    model, _ = inline_functions(model)
    separate_names(model.graph)
    refuse_random(model, with_branches=False)
    guard_random(model)
    # Folding would multiply out their weights.
    rewritten = Counter({_QUANTISED: replace_quantised(model)})
    model, problems = simplify(model)
    # Replacements may take other numbers, and unrolled loops add operators.
    limits = find_limits(model)
    model, tail, more_problems = _rewrite(model, declared_outputs, rewritten)
    limits = merged((*limits, *find_limits(model)))
    refuse_random(model)
    refuse_loops(model)
    _restore_shapes(model, trusted_shapes(model, declared_outputs))
    unknown_shapes.refuse_branches(model)
    folded = fold_affine(model)
    described = None if tail is None else describe_tail(tail, model)
    after = _count_operators(model) + _count_operators(tail or onnx.ModelProto())
    problems = tuple(dict.fromkeys((*problems, *more_problems)))
    notes += (*problems, *_describe(before, after, folded))
    notes += tuple(text.format(n) for text, n in rewritten.items() if n)
    # All in their order, those included that nothing reads.
    del model.graph.input[:]
    model.graph.input.extend(given.values())
    specs = {info.name: _spec(info) for info in model.graph.input}
    outputs = {info.name: _spec(info) for info in (tail or model).graph.output}
    data = _serialise(model, tail)
    sha256 = network_hash(data, specs)
    limits = tuple(limit for limit in limits if limit.input in specs)
    return Network(name, "onnx", data, sha256, specs, outputs, notes, values, described, limits)


def _refuse_small_floats(model: onnx.ModelProto) -> None:
    """Check that nothing rounds to floating-point numbers of at most 8 bits; kernels do not.

    Raises:
        ModelError: If an operator does, or takes an input or a weight of them.
    """
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    kinds |= {info.name: info.type.tensor_type.elem_type for info in model.graph.input}
    names = {name for name, kind in kinds.items() if kind in _SMALL_FLOATS}
    for node in nodes_within(model.graph):
        given = (item.i for item in node.attribute if item.name in ("to", "output_dtype"))
        if names.intersection(node.input) or not _SMALL_FLOATS.isdisjoint(given):
            raise ModelError(
                f"{node.op_type} of floating-point numbers of at most 8 bits: export the model "
                "with float16 or int8 in their place",
                code="unsupported-operator",
            )


def _rewrite(
    model: onnx.ModelProto,
    declared: Mapping[str, onnx.ValueInfoProto],
    rewritten: Counter[str],
) -> tuple[onnx.ModelProto, onnx.ModelProto | None, tuple[str, ...]]:
    """Replace what engines lack until nothing is left that can be replaced.

    Args:
        model: The simplified model.
        declared: Outputs by name as the model declares them; empty if they may be wrong.
        rewritten: Number of replaced operators by note, to which more are added.

    Returns:
        The new model, its tail, and the notes of its simplification.
    """
    tail: onnx.ModelProto | None = None
    problems: tuple[str, ...] = ()
    # What one of them leaves may be what another one needs.
    tables = Tables()
    while True:
        check_operands(model)
        n_inlined = inline_constant_branches(model) + unroll_loops(model)
        # Simplification inlines branches too.
        model, n_bodies = inline_functions(model)
        n_quantised = replace_quantised(model)
        n_replaced = expand_operators(model, tables) + drop_empty_values(model)
        if not n_inlined + n_bodies + n_quantised + n_replaced:
            # Another runtime takes branches in the tail, instead of computing both.
            tail = tail or split_tail(model, declared)
            # A condition may have become a constant until now.
            n_selected = select_branches(model)
            if not n_selected:
                _refuse_small_floats(model)
                return model, tail, problems
            rewritten["computed both branches of {} choices by the data"] += n_selected
        rewritten[_QUANTISED] += n_quantised
        check_loops(model)
        refuse_random(model, with_branches=False)
        model, more = simplify(model)
        problems = tuple(dict.fromkeys((*problems, *more)))


def declared_inputs(model: onnx.ModelProto) -> dict[str, Dims]:
    """Return the shape of every input that is not an initialiser, as the model declares it.

    Raises:
        ModelError: If an input is not a tensor of numbers.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    return {info.name: _dims(info) for info in model.graph.input if info.name not in weights}


def _prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy and repair a model, with its functions inlined and its initialisers no longer inputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    repair(copy)
    if copy.functions:
        check_expansion(copy)
        # It checks that functions do not call themselves.
        align_functions(copy)
        add_defaults(copy)
        with _invalid():
            copy = onnx.inliner.inline_local_functions(copy)
    check_subgraphs(copy)
    weights = {tensor.name for tensor in copy.graph.initializer}
    kept = [info for info in copy.graph.input if info.name not in weights]
    del copy.graph.input[:]
    copy.graph.input.extend(kept)
    # Before version 4 of the format every initialiser had to be an input.
    copy.ir_version = max(copy.ir_version, 4)
    add_output_types(copy)
    return copy


def _check(model: onnx.ModelProto) -> None:
    check_size(model.ByteSize(), "the model")
    newest = onnx.defs.onnx_opset_version()
    if opset_of(model) > newest:
        raise ModelError(
            f"the model uses opset {opset_of(model)}, and the newest known one is {newest}: export "
            "it with an older opset",
            code="invalid-model",
        )
    with _invalid():
        check_model(model)


@contextmanager
def _invalid() -> Iterator[None]:
    """Raise a ModelError instead of an error of the checker or of its C++ binding."""
    try:
        yield
    except Exception as error:
        reason = _ASSERTION.sub("", summary(error))[:200]
        # Nodes are sorted by now.
        reason = _UNDEFINED.sub(r"nothing gives the value \1, which an operator reads", reason)
        raise ModelError(
            f"the ONNX checker refuses the model: {reason}; export it again", code="invalid-model"
        ) from error


def _restore_shapes(model: onnx.ModelProto, declared: Mapping[str, onnx.ValueInfoProto]) -> None:
    """Give every output a fixed shape again, by inference or, if that fails, as declared."""
    lost = []
    for info in model.graph.output:
        _dtype(info)
        for candidate in (info, declared.get(info.name)):
            if candidate is not None and has_fixed_shape(candidate):
                info.CopyFrom(candidate)
                break
        else:
            lost.append(info.name)
    if lost:
        raise unknown_shapes.refusal(model, lost)


def _copies(infos: Iterable[onnx.ValueInfoProto]) -> dict[str, onnx.ValueInfoProto]:
    copies = {info.name: onnx.ValueInfoProto() for info in infos}
    for info in infos:
        copies[info.name].CopyFrom(info)
    return copies


def _serialise(model: onnx.ModelProto, tail: onnx.ModelProto | None = None) -> bytes:
    """Serialise the parts of a model and its tail that they compute with, in a fixed order."""
    graph = model.graph
    for message in (model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        message.ClearField("doc_string")
        message.ClearField("metadata_props")
    for text in ("producer_name", "producer_version", "domain", "model_version"):
        model.ClearField(text)
    graph.name = "network"
    del graph.value_info[:]
    used = {node.domain or "ai.onnx" for node in nodes_within(graph)}
    opsets = sorted(
        (item for item in model.opset_import if (item.domain or "ai.onnx") in used),
        key=lambda item: str(item.domain),
    )
    copies = [onnx.helper.make_opsetid(item.domain, item.version) for item in opsets]
    del model.opset_import[:]
    model.opset_import.extend(copies)
    drop_unused_constants(graph)
    if tail is not None:
        attach_tail(model, _serialise(tail))
    check_size(model.ByteSize(), "the simplified model")
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def _set_input_shapes(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
    for info in model.graph.input:
        shape = info.type.tensor_type.shape
        del shape.dim[:]
        for size in shapes[info.name]:
            shape.dim.add().dim_value = size


def _dims(info: onnx.ValueInfoProto) -> Dims:
    _dtype(info)
    if not info.type.tensor_type.HasField("shape"):
        return None
    # Some exporters write -1 for an unknown dimension.
    return tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or "?"
        for dim in info.type.tensor_type.shape.dim
    )


def _spec(info: onnx.ValueInfoProto) -> TensorSpec:
    dims = _dims(info) or ()
    return TensorSpec(tuple(dim if isinstance(dim, int) else -1 for dim in dims), _dtype(info))


def _dtype(info: onnx.ValueInfoProto) -> str:
    kind = info.type.WhichOneof("value")
    code = info.type.tensor_type.elem_type
    if kind != "tensor_type" or code in _NO_NUMBERS or code not in _DTYPES:
        raise ModelError(
            f"{info.name!r} is not a tensor of numbers: export the model without it",
            code="not-a-tensor",
        )
    return str(onnx.helper.tensor_dtype_to_np_dtype(code))


def _count_operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in nodes_within(model.graph))


def _describe(before: Counter[str], after: Counter[str], folded: Counter[str]) -> tuple[str, ...]:
    """Describe the changes of operators in short notes."""
    n_norms = folded["BatchNormalization"]
    counts = (
        (n_norms, "folded {} batch norms into the layers before"),
        (folded.total() - n_norms, "folded {} scales and shifts into the layers before"),
        (before["Dropout"] - after["Dropout"], "removed {} dropouts"),
    )
    done = [text.format(n) for n, text in counts if n > 0]
    if after.total() < before.total():
        done.append(f"simplified {before.total()} operators to {after.total()}")
    return tuple(done)
