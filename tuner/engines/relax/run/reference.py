"""Expected outputs of workloads by an interpreter, and the check of what no search has verified."""

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tuner.engines.base import InputKind, ObjectRequest, ReferenceRequest, variant_of
from tuner.engines.linker import link_shared
from tuner.engines.relax.codegen import build
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.run.artifacts import load_kernel
from tuner.engines.relax.run.run_device import is_gpu
from tuner.engines.relax.schedules import catalogue
from tuner.engines.relax.target.targets import describe_target
from tuner.engines.runs import KERNEL
from tuner.engines.verification import checks, references
from tuner.engines.verification.interpreter.translation import translate

_INPUTS: tuple[InputKind, ...] = ("real", "whole")
_SEED = 1


def reference(request: ReferenceRequest) -> bytes:
    """Compute a reference; see :class:`Engine`."""
    module = workloads.load(request.ir)
    is_on_gpu = is_gpu(request.target)
    program = translate(module["main"], fast_math=is_on_gpu)
    growth = 0.0 if is_on_gpu else catalogue.growth(module)
    return references.dump(references.make(program, request.inputs, request.seed, growth))


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
