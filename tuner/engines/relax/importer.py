"""Import of cleaned models as Relax modules whose parameters are constants."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from tuner.engines.base import ModelFile
from tuner.errors import ModelError, summary


def import_model(model: ModelFile) -> tvm.IRModule:
    """Import a cleaned model.

    Raises:
        ModelError: If the importer does not support it; the message names the operator.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if model.format == "onnx":
            return _import_onnx(model)
        return _import_torch(model)


def _import_onnx(model: ModelFile) -> tvm.IRModule:
    import onnx

    from tuner.engines.relax.onnx_graph import import_graph

    return import_graph(onnx.load_from_string(Path(model.path).read_bytes()))


def _import_torch(model: ModelFile) -> tvm.IRModule:
    import torch
    from tvm.relax.frontend.torch import from_exported_program

    from tuner.engines.relax.converters import torch_functions, torch_resize
    from tuner.networks.torch import fix_program, is_dynamic

    program = torch.export.load(model.path)
    if is_dynamic(program):
        program = fix_program(program, {name: shape for name, (shape, _) in model.inputs.items()})
    converters = {**torch_functions.CONVERTERS, **torch_resize.CONVERTERS}
    try:
        program = _decomposed(program, converters)
        module = from_exported_program(
            program,
            keep_params_as_input=True,
            custom_convert_map=converters,
            run_ep_decomposition=False,
        )
    except Exception as error:  # likewise
        raise ModelError(
            f"cannot import the model: {_summary(error)}", code="unsupported-operator"
        ) from error
    _check_shapes(module, program)
    module, params = relax.frontend.detach_params(module)
    names = module["main"].params[len(module["main"].params) - len(params["main"]) :]
    bound = dict(zip(names, params["main"], strict=True))
    return relax.transform.BindParams("main", bound)(module)


def _check_shapes(module: tvm.IRModule, program: Any) -> None:
    """Check that outputs have the shapes that torch gave them.

    Raises:
        ModelError: If TVM's importer took an operator for another one.
    """
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    names = program.graph_signature.user_outputs
    fields = getattr(module["main"].ret_ty, "fields", ())
    if len(fields) != len(names):
        return
    for name, field in zip(names, fields, strict=True):
        expected = getattr(values.get(name), "shape", None)
        shape = getattr(field, "shape", None)
        if expected is None or shape is None:
            continue
        actual = [int(dim) for dim in shape]
        if actual != [*expected]:
            raise ModelError(
                f"cannot import the model: output {name!r} of shape {[*expected]} becomes one of "
                f"{actual}; export the model as ONNX",
                code="unsupported-operator",
            )


def _decomposed(program: Any, kept: Iterable[str]) -> Any:
    """Return a program of core operators, and of some others, by name.

    TVM does not decompose a program with sparse tensors either.
    """
    import torch

    tensors = (*program.state_dict.values(), *program.constants.values())
    if any(isinstance(t, torch.Tensor) and t.layout != torch.strided for t in tensors):
        return program
    table = torch.export.default_decompositions()
    names = {*kept}
    for operator in [each for each in table if str(each).removeprefix("aten.") in names]:
        table.pop(operator)
    return program.run_decompositions(table)


def _summary(error: Exception) -> str:
    # The unsupported operator is named above the traceback, which ends with another error.
    return summary(error, last=True, prefer=("not supported", "not implemented"))
