"""Expected outputs of workloads, by an interpreter of their definitions."""

from tuner.engines.base import ReferenceRequest
from tuner.engines.relax import workloads
from tuner.engines.relax.run_device import is_gpu
from tuner.engines.verification import references
from tuner.engines.verification.translation import translate


def reference(request: ReferenceRequest) -> bytes:
    """Compute a reference; see :class:`Engine`."""
    function = workloads.load(request.ir)["main"]
    program = translate(function, fast_math=is_gpu(request.target))
    return references.dump(references.make(program, request.inputs, request.seed))
