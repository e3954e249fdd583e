"""Checks of a request to build a library, made before anything is compiled."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from records.tasks import WeightedTask
from tuner.errors import ModelError, RequestError
from tuner.jobs.preparation import Prepared
from tuner.library import manifest as manifests
from tuner.networks.base import LoadedModel


def check_out(out: Path) -> None:
    """Check that a folder can receive a library: it is missing, empty, or holds a library.

    Raises:
        RequestError: If it cannot.
    """
    if out.is_file():
        raise RequestError(f"{out} is a file; choose a folder for the library")
    if out.is_dir() and any(out.iterdir()) and not (out / manifests.MANIFEST).is_file():
        raise RequestError(
            f"{out} is not empty and is not a tuner library; choose another output folder"
        )
    above = next((folder for folder in out.absolute().parents if folder.exists()), None)
    if above is not None and not above.is_dir():
        raise RequestError(f"cannot write {out}: {above} is a file")


def check_programs(networks: Sequence[Prepared]) -> None:
    """Check that networks are one model with several sets of input shapes.

    Raises:
        RequestError: If inputs or outputs have other names, or two sets have the same shapes.
    """
    first = networks[0].model
    by_shapes: dict[object, Mapping[str, manifests.InputValue]] = {}
    for network in networks:
        model = network.model
        if _values_of(model) != _values_of(first):
            raise RequestError(
                f"{model.name} has other inputs or outputs than {first.name}; "
                "a library holds one model for several shapes"
            )
        shapes = tuple(model.file.inputs.items())
        if shapes in by_shapes:
            reason = (
                f"the same input shapes are given twice for {model.name}"
                if by_shapes[shapes] == model.values
                else f"{model.name} differs from another network of the same input shapes in the "
                "value of an input alone; build a library for each value"
            )
            raise ModelError(reason, field="input", code="input-shape")
        by_shapes[shapes] = model.values


def _values_of(model: LoadedModel) -> tuple[object, ...]:
    """Return the names of the inputs and outputs of a model, and of what its tail reads."""
    return list(model.file.inputs), list(model.outputs), model.tail and model.tail.returned


def check_complete(
    tasks: Mapping[str, WeightedTask],
    workloads: Collection[str],
    find_others: Callable[[], Collection[str]] = tuple,
) -> None:
    """Check that every task has a best record, with which its workload is among ``workloads``.

    Args:
        tasks: Tasks by workload.
        find_others: Returns the workloads that have claims, or records of another version or
            device, if a record is missing.

    Raises:
        RequestError: If one has none.
    """
    missing = [task for workload, task in tasks.items() if workload not in workloads]
    if missing:
        others = set(find_others()) & {task.workload_hash for task in missing}
        verify = (
            f"{len(others)} of them have claims or records of another version or device, which "
            "`tuner records verify MODEL` measures; "
            if others
            else ""
        )
        raise RequestError(
            f"{len(missing)} of {len(tasks)} subgraphs have no record for this target, the first "
            f"is {missing[0].name} ({missing[0].workload_hash}); {verify}tune the network first, "
            "or allow fallbacks",
            field="strict",
        )
