"""Build one candidate into an artifact: a shared library and a description of its arguments."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import te
from tvm.auto_scheduler import LayoutRewriteOption, SearchTask

from tuner.engines.base import BuildRequest, BuildResult
from tuner.engines.linker import link_shared
from tuner.engines.relay import traces, workloads
from tuner.engines.relay.codegen import extremes
from tuner.engines.runs import KERNEL
from tuner.errors import WorkError, error_text

LIBRARY = "kernel.so"
DESCRIPTION = "kernel.json"
_TRANSFORM = "auto_scheduler_layout_transform"


@dataclass(frozen=True)
class _Packing:
    """A function that packs an argument of the kernel, given by index."""

    index: int
    module: tvm.IRModule
    packed: Any


def build(request: BuildRequest) -> BuildResult:
    """Build a candidate; see :class:`Engine`."""
    try:
        return _build(request)
    except WorkError as error:
        return BuildResult("", str(error))
    except OSError:
        raise  # a full disk is not a failure of the candidate
    except Exception as error:  # any error of a compiler on a candidate is a result
        return BuildResult("", error_text(error))


def pack_name(index: int) -> str:
    """Name the function that packs an argument."""
    return f"pack_{index}"


def _build(request: BuildRequest) -> BuildResult:
    task = workloads.make_task(request.ir, request.target)
    out = Path(request.out)
    out.mkdir(parents=True, exist_ok=True)
    with tvm.transform.PassContext(config={"tir.add_lower_pass": extremes.PASSES}):
        module, packings = _lower(task, request.trace)
    for packing in packings:
        module.update(packing.module)
    with task.target:
        built = tvm.build(module, target=task.target)
    built.save(str(out / "kernel.o"))
    link_shared([out / "kernel.o"], out / LIBRARY)
    (out / "kernel.o").unlink()
    tensors = list(task.compute_dag.tensors)
    n_inputs = sum(isinstance(tensor.op, te.PlaceholderOp) for tensor in tensors)
    free = workloads.layout_free_operations(task)
    # Relay leaves the layout of weights to the kernel.
    weights = [
        index
        for index, placeholder in enumerate(tensors[:n_inputs])
        if any(placeholder.op.same_as(operation) for operation in free)
    ]
    (out / DESCRIPTION).write_text(
        json.dumps(
            {
                "inputs": [_shape_of(tensor) for tensor in tensors[:n_inputs]],
                "outputs": [_shape_of(tensor) for tensor in tensors[n_inputs:]],
                "packed": [
                    {"index": packing.index, **_shape_of(packing.packed)} for packing in packings
                ],
                "weights": weights,
            }
        )
    )
    return BuildResult(str(out))


def _lower(task: SearchTask, trace: str) -> tuple[tvm.IRModule, list[_Packing]]:
    """Lower the kernel as the network runs it: on packed weights.

    Raises:
        WorkError: If the trace cannot be replayed.
    """
    dag = task.compute_dag
    if not trace:
        schedule, arguments = dag.apply_steps_from_state(dag.get_init_state())
        return tvm.lower(schedule, arguments, name=KERNEL), []
    state = traces.replay(task, trace)
    schedule, arguments = dag.apply_steps_from_state(state, task.layout_rewrite_option)
    packings = _packings(task, state)
    for packing in packings:
        if tuple(arguments[packing.index].shape) != tuple(packing.packed.shape):
            raise WorkError(f"argument {packing.index} is not packed as the kernel reads it")
    return tvm.lower(schedule, arguments, name=KERNEL), packings


def _packings(task: SearchTask, state: Any) -> list[_Packing]:
    """Lower the packing that Ansor inserts before the kernel for unpacked weights."""
    if task.layout_rewrite_option != LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED:
        return []
    schedule, arguments = task.compute_dag.apply_steps_from_state(
        state, LayoutRewriteOption.INSERT_TRANSFORM_STAGE
    )
    packings = []
    for stage in schedule.stages:
        if _TRANSFORM not in str(stage.op.name):
            continue
        (plain,) = stage.op.input_tensors
        index = next(i for i, argument in enumerate(arguments) if argument.op.same_as(plain.op))
        packed = stage.op.output(0)
        module = tvm.lower(te.create_schedule(stage.op), [plain, packed], name=pack_name(index))
        packings.append(_Packing(index, module, packed))
    return packings


def _shape_of(tensor: Any) -> dict[str, Any]:
    return {"shape": [int(dim) for dim in tensor.shape], "dtype": str(tensor.dtype)}
