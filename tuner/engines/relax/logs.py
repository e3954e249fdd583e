"""Workloads, targets and schedules in the lines of MetaSchedule's JSON databases.

Their traces include the instructions of post-processors, those of the records do not: they are
cut off when a trace is read, and appended for the target when one is written.
"""

import base64
import binascii
import json
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import Workload
from tvm.tirx import PrimFunc

from tuner.engines import tvm_json
from tuner.engines.base import variant_of
from tuner.engines.log_base import LoggedWorkload, TraceBatch, TraceText, WorkloadText
from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.target.targets import canonical, make_target
from tuner.errors import WorkError, summary

_ENTRY = "main"
_LAYOUT_FREE = "layout_free_buffers"
_UNPACKED = "it is also written without packed weights, as plain TVM requires, which is slower"
# TVM writes the length, 64 bits, before a string.
_LENGTH_BYTES = 8


def read_workload(text: str) -> LoggedWorkload:
    """Rebuild a workload; see :class:`LogEngine`. The text is TVM's JSON graph in base64."""
    module = _module(text)
    if [str(name.name_hint) for name in module.functions] != [_ENTRY]:
        raise WorkError(f"its IR is not one function named {_ENTRY}")
    if not isinstance(module[_ENTRY], PrimFunc):
        raise WorkError("its IR is not a kernel")
    workload = workloads.as_workload(module[_ENTRY])
    ir = workloads.dump(workload)
    return LoggedWorkload(
        workloads.name_of(ir), _name(workload[_ENTRY]), ir, workloads.flop_of(workload)
    )


def write_workload(ir: bytes) -> list[WorkloadText]:
    """Return lines of the file of workloads; see :class:`LogEngine`.

    Plain TVM does not mark the weights that a schedule may pack, so marked kernels never match.
    """
    kernel = workloads.load(ir)[_ENTRY]
    forms = [_written(kernel, "")]
    if kernel.attrs and _LAYOUT_FREE in kernel.attrs:
        forms.append(_written(kernel.without_attr(_LAYOUT_FREE), _UNPACKED))
    return forms


def _written(kernel: PrimFunc, note: str) -> WorkloadText:
    module = workloads.as_workload(kernel)
    arguments = [tvm_json.plain(info.as_json()) for info in ArgInfo.from_entry_func(module)]
    line = json.dumps(tvm_json.plain(Workload(module).as_json()))
    return WorkloadText(line, workloads.dump(module), json.dumps(arguments), note)


def read_target(text: str) -> str:
    """Return the canonical JSON of a target; see :class:`LogEngine`."""
    return canonical(text)


def write_target(spec: str) -> str:
    """Return a target as TVM exports it; see :class:`LogEngine`."""
    return json.dumps(tvm_json.plain(make_target(spec, intrinsics=False).export()))


def read_traces(batch: TraceBatch) -> list[TraceText]:
    """Replay schedules on their workload; see :class:`LogEngine`."""
    make_target(batch.target)  # loads the tensor intrinsics
    module = workloads.load(batch.ir)
    return [_read_trace(module, text) for text in batch.texts]


def write_traces(batch: TraceBatch) -> list[TraceText]:
    """Complete traces by the post-processors of the target; see :class:`LogEngine`."""
    target = make_target(batch.target)
    module = workloads.load(batch.ir)
    return [_write_trace(module, trace, target) for trace in batch.texts]


def _read_trace(module: tvm.IRModule, text: str) -> TraceText:
    try:
        schedule = traces.replay(module, json.dumps(_decisions(json.loads(text))))
        return TraceText(traces.dump(schedule.trace), workloads.hash_of(schedule.mod))
    except WorkError as error:
        return TraceText(problem=str(error))
    except Exception as error:  # any error of TVM on a foreign trace is a result
        return TraceText(problem=f"the trace cannot be replayed: {summary(error, last=True)}")


def _write_trace(module: tvm.IRModule, trace: str, target: tvm.target.Target) -> TraceText:
    if variant := variant_of(trace):
        return TraceText(problem=f"it is of variant {variant}, which TVM does not know")
    try:
        schedule = traces.replay_and_postprocess(module, trace, target)
    except WorkError as error:
        return TraceText(problem=str(error))
    whole = tvm_json.plain(schedule.trace.as_json(remove_postproc=False))
    return TraceText(json.dumps(whole, separators=(",", ":")), workloads.hash_of(schedule.mod))


def _decisions(trace: Any) -> list[Any]:
    """Cut off the instructions that post-processors appended.

    Raises:
        WorkError: If this is not a trace.
    """
    try:
        instructions, decisions = trace
        names = [instruction[0] for instruction in instructions]
        end = names.index("EnterPostproc") if "EnterPostproc" in names else len(names)
        return [instructions[:end], [pair for pair in decisions if pair[0] < end]]
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise WorkError("the trace is not a pair of instructions and decisions") from error


def _module(text: str) -> tvm.IRModule:
    try:
        content = base64.b64decode(text, validate=True)
        graph = content if content.startswith(b"{") else content[_LENGTH_BYTES:]
        module = tvm.ir.load_json(graph.decode())
    except (binascii.Error, UnicodeDecodeError) as error:
        raise WorkError(f"its IR is not base64 of text: {error}") from error
    except Exception as error:  # any error of TVM on foreign IR is a result
        raise WorkError(f"its IR cannot be rebuilt: {summary(error, last=True)}") from error
    if not isinstance(module, tvm.IRModule):
        raise WorkError(f"its IR is not a module but a {type(module).__name__}")
    return module


def _name(kernel: PrimFunc) -> str:
    """Name a kernel by its blocks, which carry the names of operators, and its output."""
    schedule = Schedule(kernel)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    names = "_".join(str(schedule.get(block).name_hint) for block in blocks)
    shape = "x".join(str(int(dim)) for dim in kernel.params[-1].shape) if kernel.params else ""
    return f"{workloads.title(names)}[{shape}]"
