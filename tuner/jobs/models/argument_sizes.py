"""Refusal of networks with a workload whose arguments do not fit into a worker's memory."""

from collections.abc import Sequence
from typing import NamedTuple

from records.tasks import WeightedTask
from tuner.errors import ModelError
from tuner.settings import Settings
from tuner.workers.confinement.memory import memory_limits
from tuner.workers.messages import MAX_BLOB_BYTES

# Of each element of an output: its expected value and the bound of its error, in float64.
_REFERENCE_BYTES = 16


class ArgumentSizes(NamedTuple):
    """Sizes of what a process must hold to verify candidates of a workload, bytes.

    It is a lower bound: a process needs more for its code and for intermediate results.

    Attributes:
        inputs: Inputs and weights.
        reference: Expected outputs in float64, with the bounds of their errors.
    """

    inputs: int
    outputs: int
    reference: int

    @property
    def total(self) -> int:
        """Sum of the sizes."""
        return self.inputs + self.outputs + self.reference


_Sized = tuple[ArgumentSizes, WeightedTask]


def check_arguments(tasks: Sequence[WeightedTask], settings: Settings) -> None:
    """Check that the arguments of every workload fit into a worker's memory.

    Its expected outputs must fit into one answer of a worker as well.

    Raises:
        ModelError: If those of one do not fit; the message has the largest.
    """
    sized = [(sizes_of(task), task) for task in tasks]
    if not sized:
        return
    _check_memory(sized, memory_limits(settings).arguments)
    sizes, task = max(sized, key=lambda each: each[0].reference)
    if sizes.reference > MAX_BLOB_BYTES:
        raise ModelError(
            f"subgraph {task.name} is too large to verify: its expected outputs in float64 take "
            f"{_gib(sizes.reference)}, and a worker answers with at most {_gib(MAX_BLOB_BYTES)}; "
            "use a smaller batch or smaller inputs",
            code="arguments-too-large",
        )


def _check_memory(sized: Sequence[_Sized], limit: int) -> None:
    sizes, task = max(sized, key=lambda each: each[0].total)
    if sizes.total <= limit:
        return
    raise ModelError(
        f"subgraph {task.name} is too large to measure: its inputs take {_gib(sizes.inputs)}, its "
        f"outputs {_gib(sizes.outputs)} and its expected outputs in float64 "
        f"{_gib(sizes.reference)}, and a worker may use {_gib(limit)}; use a smaller batch or "
        "smaller inputs, or raise the setting worker_memory",
        code="arguments-too-large",
    )


def sizes_of(task: WeightedTask) -> ArgumentSizes:
    """Return the sizes for a task; 0 if its workload has no profile."""
    if task.profile is None:
        return ArgumentSizes(0, 0, 0)
    return ArgumentSizes(
        int(task.profile["input_bytes"]),
        int(task.profile["output_bytes"]),
        _REFERENCE_BYTES * int(task.profile["n_output_elements"]),
    )


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.3g} GiB"
