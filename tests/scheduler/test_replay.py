"""Replays of recordings that are small enough to compute by hand."""

import numpy as np
import pytest

from scheduler.allocators import ALLOCATORS
from scheduler.errors import SchedulerError
from scheduler.replay import RecordedTask, Recording, Trajectory, replay
from tests.scheduler.make import of_weights, power_laws, recorded

INF = float("inf")

SMALL = Recording(
    "small",
    (
        RecordedTask("a", 2, 1e9, "g", (4, 4, 2), (8.0, 4.0, 2.0), (1.0, 1.0, 0.5)),
        RecordedTask("b", 1, 1e9, "g", (4,), (3.0,), (2.0,)),
        RecordedTask("c", 3, 1e9, "h", (8, 8), (INF, 1.0), (4.0, 4.0)),
    ),
)


def test_round_robin_by_hand() -> None:
    """Turns a, b, c, a, c, a: each pick spends the next recorded round, exhausted tasks leave."""
    done = replay(SMALL, of_weights("round-robin"))

    assert done.picks.tolist() == [0, 1, 2, 0, 2, 0]
    assert done.trials.tolist() == [4, 8, 16, 20, 28, 30]
    assert done.secs.tolist() == [1.0, 3.0, 7.0, 8.0, 12.0, 12.5]
    assert done.total_latency_secs.tolist() == [INF, INF, INF, INF, 14.0, 10.0]
    assert SMALL.final_secs == 10.0


@pytest.mark.parametrize(
    ("goal", "expected"),
    [(14.0, (28.0, 12.0)), (10.0, (30.0, 12.5)), (9.9, (INF, INF)), (INF, (28.0, 12.0))],
)
def test_reaching_a_goal(goal: float, expected: tuple[float, float]) -> None:
    """The first pick at or below the goal counts; never is inf."""
    assert replay(SMALL, of_weights("round-robin")).reach(goal) == expected


def test_an_empty_trajectory_reaches_nothing() -> None:
    """A zero budget allows no picks."""
    done = replay(SMALL, of_weights("round-robin"), max_trials=0)

    assert isinstance(done, Trajectory)
    assert done.picks.size == done.total_latency_secs.size == 0
    assert done.reach(1e9) == (INF, INF)


@pytest.mark.parametrize("name", ALLOCATORS)
def test_every_round_is_spent_once(name: str) -> None:
    """Without a budget each allocator ends with the recording, even after failing rounds."""
    done = replay(SMALL, of_weights(name))

    assert np.bincount(done.picks).tolist() == [3, 1, 2]
    assert done.trials[-1] == 30
    assert done.total_latency_secs[-1] == SMALL.final_secs
    assert (np.diff(done.trials) > 0).all()


@pytest.mark.parametrize("name", ALLOCATORS)
@pytest.mark.parametrize(("max_trials", "spent"), [(16, 16), (17, 20), (10**6, 30)])
def test_max_trials_is_respected(name: str, max_trials: int, spent: int) -> None:
    """No round starts once the budget is spent; one that began before may exceed it."""
    done = replay(SMALL, of_weights(name), max_trials=max_trials)

    before = done.trials[-2] if len(done.trials) > 1 else 0
    assert before < max_trials
    if name == "round-robin":
        assert done.trials[-1] == spent


@pytest.mark.parametrize("name", ["gradient", "tvm"])
def test_rounds_that_fail_at_first_are_retried(name: str) -> None:
    """A task that first runs in its fourth round is retried at growing distances."""
    slow_start = recorded([INF] * 3 + [4.0, 2.0, 1.0], name="late")
    steady = recorded([9.0 - 0.01 * n for n in range(60)], name="steady")

    done = replay(Recording("late", (slow_start, steady)), of_weights(name), max_trials=30 * 16)

    tries = np.flatnonzero(done.picks == 0)[:4]
    assert np.diff(tries)[1:].tolist() == [3, 5]  # two and four picks in between
    assert np.isfinite(done.total_latency_secs[-1])


def test_a_task_without_rounds_is_never_picked() -> None:
    """It is exhausted from the start, and the total stays unknown."""
    recording = Recording("gap", (recorded([], name="none"), recorded([2.0, 1.0], name="some")))

    done = replay(recording, of_weights("gradient"))

    assert done.picks.tolist() == [1, 1]
    assert recording.final_secs == INF
    assert done.reach(100.0) == (INF, INF)


@pytest.mark.parametrize(
    ("n_trials", "best_secs", "secs"),
    [((4,), (1.0, 0.5), (1.0, 1.0)), ((4, 4), (1.0,), (1.0, 1.0)), ((4, 4), (1.0, 0.5), ())],
)
def test_columns_of_other_lengths_are_refused(
    n_trials: tuple[int, ...], best_secs: tuple[float, ...], secs: tuple[float, ...]
) -> None:
    """Every round has trials, a latency and a time."""
    with pytest.raises(SchedulerError, match=f"task a has {len(n_trials)} rounds"):
        RecordedTask("a", 1, 1e9, "g", n_trials, best_secs, secs)


def test_a_recording_has_a_task() -> None:
    """An empty network cannot be replayed."""
    with pytest.raises(SchedulerError, match="the recording of nothing has no task"):
        Recording("nothing", ())


@pytest.mark.parametrize("name", ALLOCATORS)
def test_a_replay_repeats_itself(name: str) -> None:
    """The same recording and seed give the same picks."""
    recording = power_laws(6, 12, seed=4)

    first, second = (replay(recording, of_weights(name)) for _ in range(2))

    assert first.picks.tolist() == second.picks.tolist()
    assert first.total_latency_secs.tolist() == second.total_latency_secs.tolist()


def test_learning_beats_round_robin() -> None:
    """Over ten synthetic networks, fewer trials suffice to come within 2 % of the final total."""
    ratios = []
    for seed in range(10):
        recording = power_laws(12, 20, seed)
        goal = 1.02 * recording.final_secs
        turns, _ = replay(recording, of_weights("round-robin")).reach(goal)
        trials, _ = replay(recording, of_weights("gradient")).reach(goal)
        ratios.append(turns / trials)

    assert np.exp(np.log(ratios).mean()) > 1.0
