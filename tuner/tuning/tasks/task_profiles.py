"""Similarity groups of tasks, and their roofs, from the profiles of their workloads."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from records.tasks import WeightedTask

# As in Ansor's tag of a task, which adds the magnitude of its operations to its operators
# (apache/tvm, auto_scheduler/task_scheduler.py, derive_similarity_tag).
_FLOP_FACTOR = 1.6
# A task this much faster than its roof refutes it, for example if timed with hot caches.
_MAX_ROOF_SHARE = 1.1
# Share of the roof that the tasks of a network reach together: of 23 networks of the corpus, half
# reach 0.6 to 0.9.
_ROOF_SHARE = 0.7
# Share of the retention for which weights stay where a network streams its own data, too.
_KEPT_SHARE = 0.5
# Number of networks that the tasks of a job are taken to be of. A roof has to stay a lower bound if
# they are of two that are tuned together: each one takes less time than both.
_N_NETWORKS = 2


class TaskProfiles(NamedTuple):
    """Similarity groups and roofs of the tasks of a job.

    Attributes:
        groups: Number of each task's group, shape (n_tasks,).
        roofs: Roof of each task by the peaks of the device, seconds, shape (n_tasks,); 0 where
            unknown.
    """

    groups: NDArray[np.int64]
    roofs: NDArray[np.float64]

    def credible_roofs(self, latencies: ArrayLike) -> NDArray[np.float64]:
        """Return the roofs, 0 where the latency of the task, seconds, refutes it."""
        is_credible = self.roofs <= _MAX_ROOF_SHARE * np.asarray(latencies)
        return np.where(is_credible, self.roofs, 0.0)


def task_profiles(tasks: Sequence[WeightedTask]) -> TaskProfiles:
    """Return the similarity groups and roofs of the tasks of a job.

    Its tasks are taken to be of two networks at most: those of more may have weights that stay in
    the cache, and roofs above what their kernels reach until a latency refutes them.
    """
    groups = [similarity_group(task) for task in tasks]
    in_memory = bool(tasks) and loses_weights(tasks, tasks[0].peaks, _N_NETWORKS)
    numbers = {group: number for number, group in enumerate(sorted(set(groups)))}
    return TaskProfiles(
        np.array([numbers[group] for group in groups], dtype=np.int64),
        np.array(
            [roof_secs(task, weights_in_memory=in_memory) for task in tasks], dtype=np.float64
        ),
    )


def similarity_group(task: WeightedTask) -> str:
    """Return the similarity group of a task.

    Similar tasks fuse the same operators with the same window and grouping, and need the same
    number of operations within a factor of 1.6. Without a profile, window and grouping are
    unknown and only the others count.
    """
    operators = task.name.partition("[")[0]
    profile = task.profile or {}
    magnitude = math.floor(math.log(task.flop, _FLOP_FACTOR)) if task.flop > 0.0 else -1
    return " ".join(
        (operators, profile.get("window", ""), profile.get("grouping", ""), str(magnitude))
    )


def roof_secs(task: WeightedTask, *, weights_in_memory: bool = False) -> float:
    """Return the latency that no kernel of a task can beat on its device, seconds; 0 if unknown.

    The roofline model (Williams, Waterman, Patterson, CACM 2009): the operations of the variant
    with the fewest at the device's peak for their data type, or the bytes at the bandwidth of the
    last-level cache, or of memory if they do not fit into it, whichever takes longer.

    Args:
        weights_in_memory: True if others replace the weights in that cache. They come at the
            bandwidth of memory then, perhaps while the other bytes come from the cache.
    """
    return max(_lower_bounds(task, weights_in_memory=weights_in_memory))


def peak_flops(task: WeightedTask) -> float:
    """Return the operations per second that a task reaches at most on its device; 0 if unknown."""
    if task.profile is None or task.peaks is None:
        return 0.0
    peak = _peak_flops(task.profile, task.peaks)
    return peak if math.isfinite(peak) else 0.0


def loses_weights(
    tasks: Iterable[WeightedTask], peaks: Mapping[str, Any] | None, n_networks: int = 1
) -> bool:
    """Return whether others replace the weights of a network in the last-level cache.

    They do if an inference is expected to take longer than the cache keeps what is not read again
    while the network reads other data, or where the cache keeps all that it holds, if the weights
    are larger than it. False if that is not known.

    Args:
        peaks: Peaks of the device; None if unknown.
        n_networks: Networks that the tasks are of, all of the same size.
    """
    if peaks is None:
        return False
    if peaks["weights_kept_secs"] is None:
        n_bytes = sum(task.weight * (task.profile or {}).get("weight_bytes", 0) for task in tasks)
        return bool(n_bytes / n_networks > peaks["cache_bytes"])
    secs = 0.0
    for task in tasks:
        arithmetic, traffic = _lower_bounds(replace(task, peaks=peaks), task.flop)
        secs += task.weight * max(arithmetic, traffic)
    kept_secs = _KEPT_SHARE * float(peaks["weights_kept_secs"])
    return secs / n_networks / _ROOF_SHARE > kept_secs


def is_memory_bound(task: WeightedTask, *, weights_in_memory: bool = False) -> bool:
    """Return whether the bytes of a task set its roof, not its operations; False if unknown."""
    arithmetic, traffic = _lower_bounds(task, weights_in_memory=weights_in_memory)
    return traffic > arithmetic


def _lower_bounds(
    task: WeightedTask, flop: float | None = None, *, weights_in_memory: bool = False
) -> tuple[float, float]:
    """Return the seconds that operations and bytes of a task take at least; 0 if unknown.

    Args:
        flop: Its operations; None for those of the variant that has the fewest.
        weights_in_memory: True if its weights come from memory.
    """
    profile, peaks = task.profile, task.peaks
    if profile is None or peaks is None:
        return 0.0, 0.0
    n_bytes = float(profile["n_bytes"])
    is_cached = n_bytes <= peaks["cache_bytes"]
    bandwidth = peaks["cache_bandwidth" if is_cached else "memory_bandwidth"]
    if flop is None:
        flop = min(task.flop, *profile["variants"].values(), math.inf)
    traffic = n_bytes / bandwidth
    if weights_in_memory:
        traffic = max(traffic, profile["weight_bytes"] / peaks["memory_bandwidth"])
    return float(flop / _peak_flops(profile, peaks)), float(traffic)


def _peak_flops(profile: Mapping[str, Any], peaks: Mapping[str, Any]) -> float:
    """Return the peak for the operands of a subgraph, else for its sums; inf if unknown."""
    flops = peaks["flops"]
    return float(flops.get(profile.get("operands"), flops.get(profile["dtype"], math.inf)))
