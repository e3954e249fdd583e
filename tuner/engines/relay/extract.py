"""Extraction of the weighted tasks of a network."""

from tvm import auto_scheduler

from tuner.engines.base import ExtractedTask, Extraction, ModelFile
from tuner.engines.relay import workloads
from tuner.engines.relay.importer import import_model
from tuner.engines.relay.targets import hardware_of, make_target
from tuner.errors import ModelError, described


def _failure(kind: str) -> ModelError:
    return ModelError(
        f"the network cannot be split into tasks ({kind}): the log of the process has the "
        "details; use the engine relax, or report it with the model",
        code="not-lowered",
    )


@described(_failure)
def extract(model: ModelFile, target: str) -> Extraction:
    """Split a network into weighted tasks; see :class:`Engine`.

    Kernels without a reduction are not tasks, as in Ansor: TVM's default schedules suffice.
    """
    module = import_model(model)
    tasks, weights = auto_scheduler.extract_tasks(
        module["main"],
        {},
        make_target(target),
        hardware_params=hardware_of(target),
        opt_level=3,
    )
    pairs = sorted(zip(tasks, weights, strict=True), key=lambda pair: str(pair[0].desc))
    extracted = tuple(
        ExtractedTask(
            workload=workloads.hash_of(str(task.workload_key)),
            name=workloads.title(task),
            ir=workloads.dump(task),
            weight=int(weight),
            flop=workloads.flop_of(task),
        )
        for task, weight in pairs
    )
    return Extraction(extracted, sum(task.weight for task in extracted), ())
