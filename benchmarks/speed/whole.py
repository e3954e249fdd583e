"""Peer of incremental builds: TVM compiles and exports a whole network."""

import time
from collections.abc import Mapping

from tuner.engines.base import ModelFile


def compile_whole(model: ModelFile, spec: str, traces: Mapping[str, str], out: str) -> float:
    """Compile a network the way TVM's documentation does, with the given traces.

    The kernels are those of the network's tasks, replaced by their scheduled forms, as
    ``MetaScheduleApplyDatabase`` does; then weights are packed, and ``relax.build`` and
    ``export_library`` do the rest.

    Returns:
        Seconds, from the network split into kernels to the library on disk.
    """
    import tvm
    from tvm import relax
    from tvm.relax.backend.cpu_generic import pipeline

    from tuner.engines.linker import find_compiler
    from tuner.engines.relax.graph.extract import find_subgraphs
    from tuner.engines.relax.graph.pipeline import lower
    from tuner.engines.relax.ir import traces as replays
    from tuner.engines.relax.settings import PASS_CONFIG
    from tuner.engines.relax.target.targets import make_target

    target = make_target(spec)
    module = lower(model, target, is_whole=True).module
    started = time.perf_counter()
    functions = dict(module.functions_items())
    for subgraph in find_subgraphs(module):
        if subgraph.workload not in traces:
            continue
        scheduled = replays.schedule_module(subgraph.module, traces[subgraph.workload], target)
        kernel = scheduled["main"].without_attr("global_symbol")
        for name in subgraph.functions:
            variable = module.get_global_var(name)
            functions[variable] = kernel.with_attr("tirx.is_scheduled", True)
    module = tvm.IRModule(functions, global_infos=module.global_infos)
    with target:
        module = tvm.transform.Sequential(
            [
                relax.transform.SplitLayoutRewritePreproc(),
                relax.transform.FoldConstant(),
                relax.transform.DeadCodeElimination(["main"]),
            ]
        )(module)
    passes = pipeline.dataflow_lower_passes(target) + pipeline.finalize_passes(target)
    lowering = tvm.transform.Sequential(passes)
    with tvm.transform.PassContext(config=PASS_CONFIG):
        built = relax.build(module, target, relax_pipeline=lowering, exec_mode="compiled")
    built.export_library(out, cc=find_compiler())
    return time.perf_counter() - started


def first_traces(
    model: ModelFile, spec: str, seed: int, known: Mapping[str, str]
) -> dict[str, str]:
    """Draw an unmeasured schedule for every subgraph that has schedules and no trace yet."""
    from tuner.cost_models.random import RandomModel
    from tuner.engines.base import SearchRequest
    from tuner.engines.relax import worker

    traces = dict(known)
    for task in worker.extract(model, spec).tasks:
        if task.workload in traces:
            continue
        request = SearchRequest(
            ir=task.ir,
            target=spec,
            measured=(),
            cost_model=RandomModel(seed).save(),
            n_candidates=1,
            population=16,
            n_generations=1,
            seed=seed + 1,
        )
        candidates = worker.propose(request)
        if candidates:
            traces[task.workload] = candidates[0].trace
    return traces
