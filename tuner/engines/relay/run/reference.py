"""Expected outputs of workloads, by an interpreter of their definitions."""

from tvm import te

from tuner.engines.base import ReferenceRequest
from tuner.engines.relay import workloads
from tuner.engines.verification import references
from tuner.engines.verification.interpreter.translation import translate


def reference(request: ReferenceRequest) -> bytes:
    """Compute a reference; see :class:`Engine`."""
    task = workloads.make_task(request.ir, request.target)
    program = translate(te.create_prim_func(list(task.compute_dag.tensors)))
    return references.dump(references.make(program, request.inputs, request.seed))
