"""Schedules of subgraphs without a record on a CPU, verified like candidates."""

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import tvm
from tvm.target import Target

from tuner.engines.base import BuildRequest, InputKind, ReferenceRequest
from tuner.engines.relax import default_schedule, traces, workloads
from tuner.engines.relax.build import build
from tuner.engines.relax.reference import reference
from tuner.engines.relax.run import load_kernel
from tuner.engines.relax.targets import describe_target
from tuner.engines.verification import checks
from tuner.errors import WorkError

_INPUTS: tuple[InputKind, ...] = ("real", "whole")
_SEED = 1


def schedule(ir: bytes, spec: str, target: Target) -> tvm.IRModule:
    """Schedule a subgraph by rule.

    Where this machine can run the kernel, it is compared with the references of the subgraph.

    Args:
        ir: Serialised subgraph.
        spec: Canonical JSON of the target.
        target: The target itself.

    Returns:
        The scheduled module; the unscheduled one if no rule fits or the kernel is wrong.
    """
    module = workloads.load(ir)
    trace = default_schedule.compute_trace(module, target)
    if not trace or (_runs_here(spec) and not _is_correct(ir, spec, trace)):
        return module
    return traces.schedule_module(module, trace, target)


@lru_cache(maxsize=8)
def _runs_here(spec: str) -> bool:
    return not describe_target(spec).problem


def _is_correct(ir: bytes, spec: str, trace: str) -> bool:
    """Return whether a kernel computes the outputs of its definition."""
    with TemporaryDirectory() as folder:
        built = build(BuildRequest(ir, spec, trace, str(Path(folder) / "kernel")))
        if not built.artifact:
            return False
        paths = []
        try:
            for inputs in _INPUTS:
                path = Path(folder) / f"{inputs}.npz"
                path.write_bytes(reference(ReferenceRequest(ir, spec, inputs, _SEED)))
                paths.append(str(path))
        except WorkError:
            return False  # what cannot be verified stays as it is defined
        return not checks.check(load_kernel(built.artifact, spec), paths).error_kind
