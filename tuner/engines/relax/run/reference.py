"""Expected outputs of workloads, by an interpreter of their definitions."""

from tuner.engines.base import ReferenceRequest
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.run.run_device import is_gpu
from tuner.engines.relax.schedules import catalogue
from tuner.engines.verification import references
from tuner.engines.verification.interpreter.translation import translate


def reference(request: ReferenceRequest) -> bytes:
    """Compute a reference; see :class:`Engine`."""
    module = workloads.load(request.ir)
    is_on_gpu = is_gpu(request.target)
    program = translate(module["main"], fast_math=is_on_gpu)
    growth = 0.0 if is_on_gpu else catalogue.growth(module)
    return references.dump(references.make(program, request.inputs, request.seed, growth))
