"""Searches apply few programs where few exist, and fewer where each takes long."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import onnx
import pytest
from onnx import helper

from tests.tuner.engines.relax.conftest import Save
from tuner import cost_models
from tuner.engines.base import MeasuredTrace, SearchRequest, TargetInfo
from tuner.engines.relax import worker
from tuner.engines.relax.search import programs, spaces

RequestOf = Callable[[list[onnx.NodeProto]], SearchRequest]
CONCATENATION = [
    helper.make_node("Exp", ["data"], ["a"]),
    helper.make_node("Neg", ["data"], ["b"]),
    helper.make_node("Concat", ["a", "b", "data"], ["y"], axis=1),
]
SOFTMAX = [helper.make_node("Softmax", ["data"], ["y"], axis=-1)]


@pytest.fixture
def request_of(save: Save, target: TargetInfo) -> RequestOf:
    """Factory of a round of six candidates on the only task of a network."""

    def make(nodes: list[onnx.NodeProto]) -> SearchRequest:
        (task,) = worker.extract(save(nodes, (8, 100), {}), target.spec).tasks
        model = cost_models.create("random", 0).save()
        return SearchRequest(task.ir, target.spec, (), model, 6, 32, 2, seed=5)

    return make


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The traces that are applied outside of TVM's own search."""
    traces: list[Any] = []
    apply = programs.apply

    def noting(context: Any, trace: Any, seed: int) -> Any:
        traces.append(trace)
        return apply(context, trace, seed)

    monkeypatch.setattr(programs, "apply", noting)
    return traces


def test_a_space_without_decisions_is_applied_once(
    request_of: RequestOf, applied: list[Any]
) -> None:
    """Its few programs are all proposed; then none is, and nothing is applied again."""
    request = request_of(CONCATENATION)

    candidates = worker.propose(request)

    n_applied = len(applied)
    assert 1 <= len({each.module_hash for each in candidates}) == len(candidates)
    assert n_applied < 10
    measured = tuple(MeasuredTrace(each.trace, each.module_hash, 1e-3) for each in candidates)
    assert worker.propose(replace(request, measured=measured, seed=6)) == []
    assert len(applied) == n_applied


def test_a_large_program_is_searched_with_fewer(
    request_of: RequestOf, applied: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many programs are drawn as are requested, and not more, where each counts as large."""
    monkeypatch.setattr(spaces, "_MAX_NODES", 10)
    request = request_of(SOFTMAX)

    candidates = worker.propose(request)

    assert candidates
    assert len(applied) <= 2 * request.n_candidates


def test_equal_traces_are_applied_once(request_of: RequestOf, applied: list[Any]) -> None:
    """Mutations often lead back to a trace that was tried in the same round."""
    request = request_of(SOFTMAX)
    (first,) = worker.propose(replace(request, n_candidates=1))
    applied.clear()
    measured = (MeasuredTrace(first.trace, first.module_hash, 1e-3),)

    worker.propose(replace(request, n_candidates=2, measured=measured, population=8))
    decided = [str(trace) for trace in applied if trace.decisions]
    assert len(decided) == len(set(decided))
