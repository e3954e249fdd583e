"""Import of exported programs of torch as Relax modules, directly or by way of ONNX."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx
import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from tuner.engines.base import ModelFile
from tuner.engines.relax.frontend.converters.torch import (
    torch_functions,
    torch_indices,
    torch_products,
    torch_recurrent,
    torch_resize,
)
from tuner.engines.relax.frontend.onnx_graph import import_graph
from tuner.engines.relax.frontend.torch_agreement import check_agreement
from tuner.engines.relax.ir.tensor_types import is_fixed, is_number
from tuner.errors import ModelError, summary
from tuner.networks.onnx.cleaning import clean
from tuner.networks.torch.archives import fix_program, is_dynamic
from tuner.networks.torch.programs import load_program
from tuner.networks.torch.torch_complex import as_real
from tuner.networks.torch.torch_decompositions import DECOMPOSITIONS
from tuner.networks.torch.torch_empty import fold_empty
from tuner.networks.torch.torch_onnx import as_onnx
from tuner.networks.torch.torch_random import refuse_random

_CHECKS = (
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten.sym_constrain_range.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
)


def import_program(model: ModelFile) -> tvm.IRModule:
    """Import a program of torch, by way of ONNX where TVM's importer of programs fails on it.

    Raises:
        ModelError: If an output depends on random numbers, or neither supports it; then the message
            has both reasons.
    """
    program = load_program(model.path)
    refuse_random(program)
    if is_dynamic(program):
        program = fix_program(program, {name: shape for name, (shape, _) in model.inputs.items()})
    _drop_checks(program)
    fold_empty(program)
    program = as_real(program)
    try:
        return _import_by_tvm(program)
    except ModelError as error:
        return _import_as_onnx(program, model, error)


def _drop_checks(program: Any) -> None:
    """Remove checks of numbers that depend on the data, and what they alone read; in place."""
    for node in [*program.graph.nodes]:
        if node.target in _CHECKS:
            program.graph.erase_node(node)
    program.graph.eliminate_dead_code()


def _import_by_tvm(program: Any) -> tvm.IRModule:
    converters = {
        **torch_functions.CONVERTERS,
        **torch_indices.CONVERTERS,
        **torch_products.CONVERTERS,
        **torch_recurrent.CONVERTERS,
        **torch_resize.CONVERTERS,
    }
    try:
        program = _decomposed(program, converters)
        importer = ExportedProgramImporter()
        # In branches, TVM calls the converters of a custom map without the importer.
        importer.update_convert_map(
            {name: _bound(convert, importer) for name, convert in converters.items()}
        )
        module = importer.from_exported_program(
            program,
            keep_params_as_input=True,
            unwrap_unit_return_tuple=False,
            no_bind_return_tuple=False,
            custom_convert_map=None,
        )
    # TVM documents no exceptions for operators that it does not support.
    except Exception as error:
        raise ModelError(
            f"cannot import the model: {_summary(error)}", code="unsupported-operator"
        ) from error
    _check_values(importer.env)
    module, params = relax.frontend.detach_params(module)
    names = module["main"].params[len(module["main"].params) - len(params["main"]) :]
    bound = dict(zip(names, params["main"], strict=True))
    return relax.transform.BindParams("main", bound)(module)


def _bound(convert: Callable[[Any, Any], relax.Expr], importer: Any) -> Callable[[Any], relax.Expr]:
    return lambda node: convert(node, importer)


def _import_as_onnx(program: Any, model: ModelFile, error: ModelError) -> tvm.IRModule:
    """Import a program that TVM's importer refused, as the ONNX model that torch writes for it.

    Raises:
        ModelError: The refusal ``error``, with the reason why the ONNX model is none either.
    """
    try:
        exported = as_onnx(program)
        check_agreement(program, exported)
        network = clean(exported)
        if network.tail is not None:
            raise ModelError("shapes depend on the data", code="data-dependent-shape")
        inputs = [(spec.shape, spec.dtype) for spec in network.inputs.values()]
        if inputs != [*model.inputs.values()]:
            raise ModelError(
                f"it has {len(inputs)} inputs instead of {len(model.inputs)}: export the model "
                "without those that it does not use",
                code=error.code,
            )
        module = import_graph(onnx.load_from_string(network.model))
        _check_outputs(module, program)
        return module
    except ModelError as second:
        raise ModelError(f"{error.text}; as ONNX: {second.text}", code=error.code) from second


def _check_values(values: Mapping[Any, Any]) -> None:
    """Check that values have the shapes and dtypes that torch gave them.

    Args:
        values: Imported value of each node of the program.

    Raises:
        ModelError: If TVM's importer took an operator for another one.
    """
    for node, value in values.items():
        expected = getattr(node, "meta", {}).get("val")
        _check(node.name, expected, getattr(value, "ty", None))


def _check_outputs(module: tvm.IRModule, program: Any) -> None:
    """Check the outputs of a module as :func:`_check_values` does."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    names = program.graph_signature.user_outputs
    returned = module["main"].ret_ty
    types = [*getattr(returned, "fields", [returned])]
    if len(types) != len(names):
        raise ModelError(f"it has {len(types)} outputs", code="unsupported-operator")
    for name, type_ in zip(names, types, strict=True):
        _check(name, values.get(name), type_)


def _check(name: str, expected: Any, type_: Any) -> None:
    """Check the type of a value; shapes with unknown sizes are not compared.

    Raises:
        ModelError: If it has another shape or dtype than torch gave it.
    """
    if not isinstance(expected, torch.Tensor) or not isinstance(type_, relax.TensorType):
        return
    if not (is_fixed(type_) and all(map(is_number, expected.shape))):
        return
    intended = f"{str(expected.dtype).removeprefix('torch.')} {[*expected.shape]}"
    actual = f"{type_.dtype} {[int(size) for size in type_.shape]}"
    if actual != intended:
        raise ModelError(
            f"cannot import the model: {name!r}, {intended}, becomes {actual}",
            code="unsupported-operator",
        )


def _decomposed(program: Any, kept: Iterable[str]) -> Any:
    """Return a program of core operators, and of some others, by name.

    TVM does not decompose a program with sparse tensors either.
    """
    tensors = (*program.state_dict.values(), *program.constants.values())
    if any(isinstance(t, torch.Tensor) and t.layout != torch.strided for t in tensors):
        return program
    table = torch.export.default_decompositions()
    names = {*kept}
    if any(map(torch_recurrent.has_projections, program.graph.nodes)):
        names.remove("lstm.input")
    for operator in [each for each in table if str(each).removeprefix("aten.") in names]:
        table.pop(operator)
    table.update(DECOMPOSITIONS)
    return program.run_decompositions(table)


def _summary(error: Exception) -> str:
    # The unsupported operator is named above the traceback, which ends with another error.
    return summary(error, last=True, prefer=("not supported", "not implemented"))
