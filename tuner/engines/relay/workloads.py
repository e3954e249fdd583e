"""Workloads: the compute graph of a subgraph, with Ansor's key, bytes and name."""

import hashlib
import json
import math
import re
import zlib
from functools import lru_cache
from typing import Any

import tvm
from tvm import te
from tvm.auto_scheduler import ComputeDAG, LayoutRewriteOption, SearchTask
from tvm.auto_scheduler.workload_registry import register_workload_tensors
from tvm.te import ComputeOp

from tuner.engines import profiles
from tuner.engines.base import WorkloadProfile
from tuner.engines.relay.targets import hardware_of, make_target

_LAYOUT_FREE = "layout_free_placeholders"


def name_of(ir: bytes) -> str:
    """Return the name of a workload: the SHA-256 of its canonical IR."""
    return hashlib.sha256(zlib.decompress(ir)).hexdigest()


def dump(task: SearchTask) -> bytes:
    """Serialise a workload in canonical form: its key and the tensors of its graph, zlib."""
    fields = {
        "key": str(task.workload_key),
        "tensors": tvm.ir.save_json(task.compute_dag.tensors),
        "layout_rewrite": _layout_rewrite(task),
        "inputs": [str(name) for name in task.task_input_names],
    }
    return zlib.compress(json.dumps(fields).encode(), 9)


def key_of(ir: bytes) -> str:
    """Return the key of a workload in Ansor's logs."""
    return str(_read(ir)["key"])


def options_of(ir: bytes) -> list[Any]:
    """Return the workload options in lines of Ansor's logs: layout rewrite and inputs."""
    written = _read(ir)
    return [written["layout_rewrite"], written["inputs"]]


@lru_cache(maxsize=256)
def make_task(ir: bytes, target: str) -> SearchTask:
    """Rebuild the task of a workload on a target, and register the workload in TVM.

    Args:
        ir: Output of :func:`dump`.
        target: Canonical JSON.
    """
    written = _read(ir)
    tensors = tvm.ir.load_json(written["tensors"])
    register_workload_tensors(written["key"], tensors)
    return SearchTask(
        compute_dag=ComputeDAG(tensors),
        workload_key=written["key"],
        target=make_target(target),
        hardware_params=hardware_of(target),
        layout_rewrite_option=written["layout_rewrite"],
        task_inputs=written["inputs"] or None,
    )


def flop_of(task: SearchTask) -> float:
    """Return the floating-point operations of one run by Ansor's count; at least 1 per output."""
    counted = float(task.compute_dag.flop_ct)
    if counted > 0:
        return counted
    return float(math.prod(int(dim) for dim in task.compute_dag.tensors[-1].shape))


def profile(irs: list[bytes]) -> list[WorkloadProfile]:
    """Profile workloads; see :class:`Engine`."""
    functions = [te.create_prim_func(tvm.ir.load_json(_read(ir)["tensors"])) for ir in irs]
    return [profiles.profile(function) for function in functions]


def title(task: SearchTask) -> str:
    """Return the operators and the output shape of a workload, for people.

    Relay's names begin with the position of an operator and end with a counter.
    """
    name = str(task.desc).split(",", maxsplit=1)[0].removeprefix("vm_mod_").removeprefix("fused_")
    for noise in ("nn_contrib_", "nn_", "_without_weight_transform"):
        name = name.replace(noise, "")
    shape = "x".join(str(int(dim)) for dim in task.compute_dag.tensors[-1].shape)
    return f"{re.sub(r'_[0-9]+$', '', name)}[{shape}]"


def layout_free_operations(task: SearchTask) -> list[Any]:
    """Return the inputs whose layout the kernel may choose, because they are constants."""
    return [
        placeholder.op
        for tensor in _computed(task)
        if _LAYOUT_FREE in tensor.op.attrs
        for placeholder in tensor.op.attrs[_LAYOUT_FREE]
    ]


def _layout_rewrite(task: SearchTask) -> int:
    """Return True if the kernel may choose the layout of its weights.

    A layout is written as alternating sizes and axis names, such as ``4k16ff``; TVM 0.19 cannot
    parse it if an axis name ends with a digit, as in ``nn.dense``.
    """
    names = {
        str(axis.var.name).split("_")[0]
        for tensor in _computed(task)
        if _LAYOUT_FREE in tensor.op.attrs
        for axis in (*tensor.op.axis, *tensor.op.reduce_axis)
    }
    if any(char.isdigit() for name in names for char in name):
        return int(LayoutRewriteOption.NO_REWRITE)
    return int(task.layout_rewrite_option)


def _computed(task: SearchTask) -> list[Any]:
    """Return the computed tensors of the graph."""
    return [op.output(0) for op in task.compute_dag.ops if isinstance(op, ComputeOp)]


def _read(ir: bytes) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(zlib.decompress(ir))
    return written


def define(irs: list[bytes]) -> list[str]:
    """Return the definitions of workloads as tensor expressions; see :class:`Engine`."""
    return [str(ComputeDAG(tvm.ir.load_json(_read(ir)["tensors"]))) for ir in irs]
