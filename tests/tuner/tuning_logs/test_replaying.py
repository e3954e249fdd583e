"""A trace that kills its worker dies alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tuner.tuning_logs import crashing
from tuner.engines.log_base import TraceBatch
from tuner.tuning_logs.replaying import submit
from tuner.workers.pool import Pool, WorkerSettings


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """One worker."""
    with Pool(WorkerSettings(1, tmp_path / "worker.log")) as opened:
        yield opened


def answers(pool: Pool, *texts: str, timeout_secs: float = 30.0) -> list[tuple[str, str]]:
    """What comes of a batch: text and problem of each."""
    batch = TraceBatch(b"", "", texts)
    replays = submit(pool, crashing.__name__, "read_traces", batch, timeout_secs)
    return [(each.text, each.problem) for each in replays.results()]


def test_a_batch_has_an_answer_for_each_trace(pool: Pool) -> None:
    """In its order; a problem is one of them."""
    assert answers(pool, "a", "bad", "b") == [("a", ""), ("bad", "it is bad"), ("b", "")]


def test_one_that_kills_its_worker_is_told_from_the_others(pool: Pool) -> None:
    """They are tried again one by one."""
    first, second, third = answers(pool, "a", "die", "b")

    assert (first, third) == (("a", ""), ("b", ""))
    assert second[1].startswith("the trace cannot be replayed: the worker was killed by SIGABRT")


def test_one_that_takes_too_long_is_left_out(pool: Pool) -> None:
    """Its worker is replaced."""
    ((text, problem),) = answers(pool, "hang", timeout_secs=0.5)

    assert text == ""
    assert problem.startswith("the trace cannot be replayed: ")
    assert answers(pool, "a") == [("a", "")]
