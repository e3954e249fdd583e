"""Comparison of allocators on recorded curves."""

import os
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path

from scheduler.allocators import default_settings, make_allocator
from scheduler.objectives import Networks, make_objective
from scheduler.replay import Recording, Trajectory, replay
from tuner.errors import RequestError, install_command

# Distances from the final total latency, as fractions of it.
GOALS = (0.10, 0.05, 0.02, 0.01)


@dataclass(frozen=True)
class Reached:
    """Cost of coming within a fraction of the final total latency.

    ``trials`` and ``secs`` are inf if the allocator never came that near.
    """

    within: float
    trials: float
    secs: float


@dataclass(frozen=True)
class Replayed:
    """Result of one allocator on one recording."""

    network: str
    allocator: str
    trajectory: Trajectory
    reached: tuple[Reached, ...]


def compare(
    recordings: Sequence[Recording],
    names: Sequence[str],
    *,
    cost_aware: bool = True,
    seed: int = 0,
) -> list[Replayed]:
    """Replay every allocator on every recording.

    Args:
        recordings: The recorded curves.
        cost_aware: True to let allocators weigh seconds, False to compare trials only.

    Raises:
        SchedulerError: If an allocator is unknown.
    """
    return [
        _replay(recording, name, cost_aware, seed) for recording in recordings for name in names
    ]


def plot(results: Sequence[Replayed], path: Path) -> None:
    """Plot total latency over trials as PNG, with a panel per network and a line per allocator.

    Raises:
        RequestError: If matplotlib is not installed.
        OSError: If the file cannot be written.
    """
    # It takes its settings from a file of the current folder.
    try:
        with chdir(os.sep):
            from matplotlib.figure import Figure
    except ImportError as error:
        raise RequestError(f"plots need the extra plot: {install_command('plot')}") from error

    networks = list(dict.fromkeys(result.network for result in results))
    n_columns = min(len(networks), 2)
    n_rows = -(-len(networks) // n_columns)
    figure = Figure(figsize=(6.4 * n_columns, 4.2 * n_rows), layout="constrained")
    for index, network in enumerate(networks):
        axes = figure.add_subplot(n_rows, n_columns, index + 1)
        for result in results:
            if result.network == network:
                trajectory = result.trajectory
                axes.step(
                    trajectory.trials,
                    trajectory.total_latency_secs * 1e3,
                    where="post",
                    label=result.allocator,
                )
        axes.set_title(network)
        axes.set_xlabel("trials")
        axes.set_ylabel("estimated latency, ms")
        axes.set_yscale("log")
        axes.grid(alpha=0.3, which="both")
        axes.legend()
    figure.savefig(path, format="png", dpi=120)


def _replay(recording: Recording, name: str, cost_aware: bool, seed: int) -> Replayed:
    settings = replace(default_settings(name), cost_aware=cost_aware)
    objective = make_objective("weighted_sum", Networks.single(recording.weights))
    trajectory = replay(recording, lambda _: make_allocator(name, objective, seed, settings))
    final = recording.final_secs
    reached = tuple(Reached(within, *trajectory.reach(final * (1.0 + within))) for within in GOALS)
    return Replayed(recording.network, name, trajectory, reached)
