"""A rule that fails is logged, and leaves the programs of the others."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from tests.tuner.engines.relax.schedules.test_ranking import workload
from tuner.engines.base import TargetInfo
from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.schedules.cpu import direct
from tuner.engines.relax.search import programs
from tuner.engines.relax.search.sources import rules
from tuner.engines.relax.target.targets import make_target
from tuner.errors import WorkError

_PRODUCT, _N_PROGRAMS = "conv of 40 channels", 6


def first_programs(target: TargetInfo) -> list[str]:
    """Return the hashes of the first programs of a product, asked for twice."""
    ir = workloads.dump(workload(_PRODUCT))
    ranked = rules.ranked_programs.__wrapped__(ir, target.spec)
    first, again = ([each.module_hash for each in islice(ranked, _N_PROGRAMS)] for _ in range(2))
    assert first == again
    return first


def fails_once(function: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """Return a function that raises at its first call."""
    errors = [error]

    def call(*args: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop()
        return function(*args, **options)

    return call


@pytest.mark.parametrize(
    ("module", "name", "n_lost"),
    [
        (programs, "apply", 1),
        (direct, "schedule_direct", 1),
    ],
)
def test_a_failure_leaves_the_other_programs(
    module: Any,
    name: str,
    n_lost: int,
    target: TargetInfo,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One trace, one tile or one kind is missing, and the log has the error."""
    expected = first_programs(target)
    monkeypatch.setattr(module, name, fails_once(getattr(module, name), KeyError("broken rule")))

    hashes = first_programs(target)

    assert len(hashes) == _N_PROGRAMS
    assert 0 < len({*expected} - {*hashes}) <= n_lost
    assert "broken rule" in caplog.text
    # Without it, the test would fail as one during which a schedule raised by mistake.
    caplog.clear()


def test_a_trace_that_cannot_be_replayed_leaves_the_others(
    target: TargetInfo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Programs of closed spaces are those of their traces in JSON."""
    module, made = workload(_PRODUCT), make_target(target.spec)
    ir = workloads.dump(module)
    ranked = list(islice(ranking.ranked(ranking.describe(module, made)), 3))
    monkeypatch.setattr(ranking, "ranked", lambda *_, **__: iter(ranked))
    monkeypatch.setattr(traces, "replay", fails_once(traces.replay, WorkError("broken rule")))

    closed = rules.closed_programs.__wrapped__(ir, target.spec)

    assert len([*closed]) == len(ranked) - 1
    assert "broken rule" in caplog.text
