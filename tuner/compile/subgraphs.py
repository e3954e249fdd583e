"""Subgraphs to compile and their compiled objects."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from records.bests import BestTrace
from records.tasks import WeightedTask
from tuner.build_cache.entries import Entry
from tuner.build_cache.keys import KeyDifference
from tuner.engines.base import LinkedObject


@dataclass(frozen=True)
class SubgraphRequest:
    """A subgraph to compile; without a trace it is a fallback.

    Attributes:
        workload: Hash of the workload.
        name: Name for people.
        task_id: Id of a task with this workload.
        trace: Trace of the schedule; empty for a fallback.
        trace_hash: Hash of the trace; None for a fallback.
        flop: Floating-point operations of one call, a measure of the time to compile it.
    """

    workload: str
    name: str
    task_id: int
    trace: str = ""
    trace_hash: str | None = None
    flop: float = 0.0


@dataclass(frozen=True)
class BuildStep:
    """Origin of the object of one subgraph: the build cache or a compilation.

    Attributes:
        workload: Hash of the workload.
        name: Name for people.
        hit: True if the object was in the cache.
        secs: Time that its compilation took, now or earlier.
        why: Difference from the nearest entry, for a miss that is explained; None if the cache
            has no such entry.
        variant: Variant that it was compiled as, by its record or by rule; empty for the
            workload itself.
    """

    workload: str
    name: str
    hit: bool
    secs: float
    why: KeyDifference | None = None
    variant: str = ""


OnStep = Callable[[BuildStep], None]


@dataclass(frozen=True)
class SubgraphObjects:
    """Objects of subgraphs, held in the build cache until they are closed.

    Attributes:
        entries: Entry of each object by workload hash.
        steps: Origin of each object.
    """

    entries: Mapping[str, Entry]
    steps: tuple[BuildStep, ...]

    def write_into(self, folder: Path) -> dict[str, LinkedObject]:
        """Write the files of every object below a folder."""
        linked = {}
        for workload, entry in self.entries.items():
            into = folder / entry.digest
            into.mkdir(exist_ok=True)
            entry.write_into(into)
            linking = entry.info["linking"]
            linked[workload] = LinkedObject(str(into), symbol_of(entry.digest), linking)
        return linked

    def close(self) -> None:
        """Release the entries."""
        for entry in self.entries.values():
            entry.close()


def subgraph_request(task: WeightedTask, best: BestTrace | None) -> SubgraphRequest:
    """Request the subgraph of a task with its best trace, or a fallback without one."""
    return SubgraphRequest(
        workload=task.workload_hash,
        name=task.name,
        task_id=task.task_id,
        trace="" if best is None else best.trace,
        trace_hash=None if best is None else best.trace_hash,
        flop=task.flop,
    )


def symbol_of(digest: str) -> str:
    """Name the function of an object after its key, so that equal keys give equal bytes."""
    return f"tuner_{digest[:24]}"
