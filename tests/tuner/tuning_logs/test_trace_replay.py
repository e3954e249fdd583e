"""A trace that crashes its worker does not affect the others."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tuner.tuning_logs import crashing
from tuner.engines.log_base import TraceBatch
from tuner.tuning_logs.trace_replay import submit
from tuner.workers.pool import Pool, WorkerSettings


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """Pool of one worker."""
    with Pool(WorkerSettings(1, tmp_path / "worker.log")) as opened:
        yield opened


def answers(pool: Pool, *texts: str, timeout_secs: float = 30.0) -> list[tuple[str, str]]:
    """Return text and problem of each trace of a batch."""
    batch = TraceBatch(b"", "", texts)
    replays = submit(pool, crashing.__name__, "read_traces", batch, timeout_secs)
    return [(result.text, result.problem) for result in replays.results()]


def test_a_batch_has_an_answer_for_each_trace(pool: Pool) -> None:
    """Results are in order, and problems are among them."""
    assert answers(pool, "a", "bad", "b") == [("a", ""), ("bad", "it is bad"), ("b", "")]


def test_a_trace_that_crashes_its_worker_is_isolated(pool: Pool) -> None:
    """The traces are retried one by one."""
    first, second, third = answers(pool, "a", "die", "b")

    assert (first, third) == (("a", ""), ("b", ""))
    assert second[1].startswith("the trace cannot be replayed: the worker was killed by SIGABRT")


def test_a_trace_that_takes_too_long_is_left_out(pool: Pool) -> None:
    """Its worker is replaced."""
    ((text, problem),) = answers(pool, "hang", timeout_secs=0.5)

    assert text == ""
    assert problem.startswith("the trace cannot be replayed: ")
    assert answers(pool, "a") == [("a", "")]
