"""Runs that go on after an outage of their database, and end when it is there and refuses."""

from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from tuner.tuning.writing import storage_retry
from tuner.tuning.writing.storage_retry import run_with_reconnect


class Refusal(Exception):  # noqa: N818  it is what a driver raises
    """An error of a driver."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__("the server refuses")
        self.sqlstate = sqlstate


def n_attempts(folder: Path, sqlstate: str | None, n_failures: int) -> int:
    """Return the attempts at work that fails as many times, each after a long time.

    Raises:
        OperationalError: If it was given up.
    """
    attempts = 0

    def work() -> int:
        nonlocal attempts
        attempts += 1
        if attempts <= n_failures:
            raise OperationalError("COMMIT", {}, Refusal(sqlstate))
        return attempts

    engine = create_engine(f"sqlite:///{folder / 'any.db'}")
    try:
        return run_with_reconnect(engine, work)
    finally:
        engine.dispose()


@pytest.fixture(autouse=True)
def _no_failure_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_retry, "_QUICK_FAILURE_SECS", -1.0)
    monkeypatch.setattr(storage_retry, "_PROBE_INTERVAL_SECS", 0.0)


def test_a_refusal_now_and_then_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours of work lie between two backups that lock a table."""
    monkeypatch.setattr(storage_retry, "_REFUSAL_SECS", -1.0)

    assert n_attempts(tmp_path, "55P03", 10) == 11


def test_work_goes_on_after_any_number_of_outages(tmp_path: Path) -> None:
    """A connection that breaks every few minutes ends no run."""
    assert n_attempts(tmp_path, "57P01", 10) == 11
    assert n_attempts(tmp_path, None, 10) == 11


@pytest.mark.parametrize("sqlstate", ["55P03", "57014", "53100"])
def test_a_server_that_refuses_again_and_again_ends_the_run(tmp_path: Path, sqlstate: str) -> None:
    """A lock or a statement took too long, or its disk is full: waiting did not help thrice."""
    assert n_attempts(tmp_path, sqlstate, 3) == 4
    with pytest.raises(OperationalError, match="the server refuses"):
        n_attempts(tmp_path, sqlstate, 4)
