"""Extraction of the weighted tasks of a network."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.tirx import PrimFunc

from tuner.engines.base import ExtractedTask, Extraction, ModelFile
from tuner.engines.relax.graph.definitions.step_loops import StepLoop
from tuner.engines.relax.graph.pipeline import lower, lowering_failure
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.target.targets import make_target
from tuner.errors import described


@dataclass
class Subgraph:
    """One distinct workload of a lowered network.

    Attributes:
        workload: Its hash.
        ir: Its IR, as stored.
        functions: Its kernels; the step of a loop is named by :func:`step_name`.
        n_calls: Runs in one inference, one after the other.
    """

    workload: str
    ir: bytes
    module: tvm.IRModule
    functions: list[str]
    n_calls: int

    @property
    def name(self) -> str:
        """Operators and output shape of the subgraph."""
        *_, output = self.module["main"].params
        shape = "x".join(str(int(dim)) for dim in output.shape)
        kernel, _, _ = self.functions[0].partition(".")
        return f"{workloads.title(kernel)}[{shape}]"


@described(lowering_failure)
def extract(model: ModelFile, target: str) -> Extraction:
    """Split a network into weighted tasks; see :class:`Engine`."""
    subgraphs = find_subgraphs(lower(model, make_target(target, intrinsics=False)))
    tasks = tuple(
        ExtractedTask(
            workload=subgraph.workload,
            name=subgraph.name,
            ir=subgraph.ir,
            weight=subgraph.n_calls,
            flop=workloads.flop_of(subgraph.module),
        )
        for subgraph in subgraphs
    )
    return Extraction(tasks, sum(task.weight for task in tasks))


def find_subgraphs(module: tvm.IRModule) -> list[Subgraph]:
    """Group the kernels that ``main`` calls by workload, in order of first call.

    A kernel that only reshapes is not a subgraph: the build turns it into a view. Neither is one
    that calls a library, such as a sort, or that loops over steps, which are subgraphs.
    """
    subgraphs: dict[str, Subgraph] = {}
    for name, function, n_calls in _kernels(module):
        if relax.analysis.has_reshape_pattern(function) or workloads.is_opaque(function):
            continue
        workload_module = workloads.as_workload(function)
        ir = workloads.dump(workload_module)
        workload = workloads.name_of(ir)
        subgraph = subgraphs.setdefault(workload, Subgraph(workload, ir, workload_module, [], 0))
        subgraph.functions.append(name)
        subgraph.n_calls += n_calls
    return list(subgraphs.values())


def step_name(loop: str, direction: int) -> str:
    """Return the name of the step of a loop, by the name of the loop's kernel."""
    return f"{loop.replace('loop', 'step')}.{direction}"


def _kernels(module: tvm.IRModule) -> Iterator[tuple[str, PrimFunc, int]]:
    """Yield name, definition and number of runs of each kernel, steps in place of their loops."""
    calls: Counter[str] = Counter()

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and getattr(expr.op, "name", "") == "relax.call_tir":
            calls[str(expr.args[0].name_hint)] += 1

    relax.analysis.post_order_visit(module["main"], visit)
    for name, n_calls in calls.items():
        loop = StepLoop.of(module[name])
        if loop is None:
            yield name, module[name], n_calls
            continue
        for direction, step in enumerate(loop.steps):
            n_runs = 0 if loop.is_parallel and direction else loop.n_steps
            yield step_name(name, direction), step, n_calls * n_runs
