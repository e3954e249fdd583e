"""Extraction of the weighted tasks of a network."""

from tvm import auto_scheduler

from tuner.engines.base import ExtractedTask, Extraction, ModelFile
from tuner.engines.relay import workloads
from tuner.engines.relay.importer import import_model
from tuner.engines.relay.targets import hardware_of, make_target
from tuner.errors import ModelError, described


def _failure(reason: str) -> ModelError:
    return ModelError(
        f"the network cannot be split into tasks{reason}; use the engine relax, or report it with "
        "the model",
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
    extracted = tuple(_extracted(task, int(weight)) for task, weight in pairs)
    return Extraction(extracted, sum(task.weight for task in extracted))


def _extracted(task: auto_scheduler.SearchTask, weight: int) -> ExtractedTask:
    ir = workloads.dump(task)
    return ExtractedTask(
        workload=workloads.name_of(ir),
        name=workloads.title(task),
        ir=ir,
        weight=weight,
        flop=workloads.flop_of(task),
    )
