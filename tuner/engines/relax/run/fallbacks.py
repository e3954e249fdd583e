"""Verification of the kernels of subgraphs without a record, which no search has verified."""

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tuner.engines.base import InputKind, ObjectRequest, ReferenceRequest, variant_of
from tuner.engines.linker import link_shared
from tuner.engines.relax.codegen import build
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.run.artifacts import load_kernel
from tuner.engines.relax.run.reference import reference
from tuner.engines.relax.target.targets import describe_target
from tuner.engines.runs import KERNEL
from tuner.engines.verification import checks

_INPUTS: tuple[InputKind, ...] = ("real", "whole")
_SEED = 1


@lru_cache(maxsize=8)
def runs_here(spec: str) -> bool:
    """Return whether this machine can run kernels for a target."""
    return not describe_target(spec).problem


def is_correct(request: ObjectRequest, objects: list[Path], packed: list[dict[str, Any]]) -> bool:
    """Return whether a kernel computes the outputs of its definition.

    Args:
        request: Request that it was compiled for, with its trace; its target is this machine.
        objects: Object files of the kernel, as a library contains it, and of its packing.
        packed: Description of the packed arguments.

    Raises:
        WorkError: If the subgraph cannot be verified.
        RuntimeError: If the kernel fails.
    """
    ir, spec = request.ir, request.target
    with TemporaryDirectory() as folder:
        alias = f"--defsym=__tvm_ffi_{KERNEL}=__tvm_ffi_{request.symbol}"
        link_shared(objects, Path(folder) / build.LIBRARY, (alias,))
        build.describe(workloads.load(ir), [], packed, Path(folder), variant_of(request.trace))
        paths = []
        for inputs in _INPUTS:
            path = Path(folder) / f"{inputs}.npz"
            path.write_bytes(reference(ReferenceRequest(ir, spec, inputs, _SEED)))
            paths.append(str(path))
        return not checks.check(load_kernel(folder, spec), paths).error_kind
