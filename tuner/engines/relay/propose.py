"""One round of Ansor's sketch search as a pure function of the measured traces.

Ansor's policy keeps the measured states and their speed between rounds. Here every round starts a
fresh policy: measured states seed its population, as many more candidates are requested, and those
measured before are dropped.
"""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
from tvm.auto_scheduler import SearchTask, SketchPolicy
from tvm.auto_scheduler.cost_model.cost_model import PythonBasedModel
from tvm.auto_scheduler.feature import (
    get_per_store_feature_names,
    get_per_store_features_from_states,
)

from tuner import cost_models
from tuner.cost_models import features as feature_blobs
from tuner.engines.base import Candidate, SearchRequest
from tuner.engines.relay import traces, workloads
from tuner.errors import WorkError

# Share of the population seeded from records (Ansor's).
_MEASURED_RATIO = 0.2
_MAX_FIRST = 50

Array = np.ndarray[Any, np.dtype[np.float32]]

_NAMES = [str(name) for name in get_per_store_feature_names()]
_FIRST = next(i for i, name in enumerate(_NAMES) if name.startswith("B0."))
_WIDTH = sum(name.startswith("B0.") for name in _NAMES)
_N_BUFFERS = sum(name.endswith(".acc_type.kRead") for name in _NAMES)
_LINES = _NAMES.index("B0.lines") - _FIRST
_BYTES = _NAMES.index("B0.bytes") - _FIRST


def extract(task: SearchTask, states: Sequence[Any]) -> list[Array]:
    """Return the features of states; one row of zeros for a state that cannot be lowered.

    Returns:
        One array per state, shape (n_stores, 164).
    """
    if not states:
        return []
    extracted = get_per_store_features_from_states(states, task)
    arrays = [np.atleast_2d(np.asarray(array, np.float32)) for array in extracted]
    counts = [len(array) for array in arrays]
    rows = _with_ordered_buffers(np.concatenate(arrays))
    state = np.repeat(np.arange(len(arrays)), counts)
    # Ansor lists stores, too, in the order of their addresses.
    keys: list[Any] = [*rows.T[::-1], state]
    return np.split(rows[np.lexsort(keys)], np.cumsum(counts)[:-1])


def _with_ordered_buffers(rows: Array) -> Array:
    """Order the buffers of each store, shape (n_stores, 164).

    Ansor orders them by the cache lines and bytes they touch, and ties
    by their addresses, so that the features of a state would differ between processes.
    """
    buffers = rows[:, _FIRST : _FIRST + _N_BUFFERS * _WIDTH].reshape(-1, _WIDTH)
    store = np.repeat(np.arange(len(rows)), _N_BUFFERS)
    rest = [-buffers[:, column] for column in reversed(range(_WIDTH))]
    keys: list[Any] = [*rest, -buffers[:, _BYTES], -buffers[:, _LINES], store]
    order = np.lexsort(keys)
    ordered = rows.copy()
    ordered[:, _FIRST : _FIRST + _N_BUFFERS * _WIDTH] = buffers[order].reshape(len(rows), -1)
    return ordered


def propose(request: SearchRequest) -> list[Candidate]:
    """Search one task; see :class:`Engine`."""
    task = workloads.make_task(request.ir, request.target)
    model = _SearchModel(cost_models.load(request.cost_model))
    policy = SketchPolicy(task, model, _parameters(request), seed=request.seed, verbose=0)
    drawn = list(policy.sample_initial_population())
    known = {measured.module_hash for measured in request.measured}
    evolved = list(
        policy.evolutionary_search(
            [*_measured_states(task, request), *drawn], request.n_candidates + len(known)
        )
    )
    best = dict(islice(_fresh(evolved, known).items(), request.n_candidates))
    n_random = request.n_candidates - len(best) + request.n_random
    randoms = dict(islice(_fresh(drawn, known | best.keys()).items(), n_random))
    return [
        *_candidates(task, best, model, "evolution"),
        *_candidates(task, randoms, model, "random"),
    ]


def hash_of(state: Any) -> str:
    """Hash the program of a state, 16 hexadecimal digits: Ansor compares states by it too."""
    return hashlib.sha256(str(state).encode()).hexdigest()[:16]


def _parameters(request: SearchRequest) -> dict[str, Any]:
    return {
        "eps_greedy": 0.0,
        "sample_init_min_population": min(_MAX_FIRST, max(request.population // 2, 1)),
        "evolutionary_search_population": request.population,
        "evolutionary_search_num_iters": request.n_generations,
    }


def _measured_states(task: SearchTask, request: SearchRequest) -> list[Any]:
    """Rebuild the fastest states, as many as the search seeds its population with."""
    states = []
    ran = [record for record in request.measured if record.latency is not None]
    ran.sort(key=lambda record: (record.latency, record.module_hash))
    for measured in ran[: int(request.population * _MEASURED_RATIO)]:
        try:
            states.append(traces.replay(task, measured.trace).state_object)
        except WorkError:
            continue  # a record of another version counts as measured, but is not a seed
    return states


def _fresh(states: Iterable[Any], known: set[str]) -> dict[str, Any]:
    """Return the states that were not measured, by their hash, in their order."""
    fresh: dict[str, Any] = {}
    for state in states:
        name = hash_of(state)
        if name not in known:
            fresh.setdefault(name, state)
    return fresh


def _candidates(
    task: SearchTask, picked: dict[str, Any], model: "_SearchModel", origin: str
) -> list[Candidate]:
    if not picked:
        return []
    extracted = extract(task, list(picked.values()))
    scores = model.model.predict(extracted)
    candidates = [
        Candidate(
            trace=traces.dump(task, state),
            module_hash=name,
            features=feature_blobs.pack(stores),
            score=float(score),
            origin=origin,
        )
        for (name, state), stores, score in zip(picked.items(), extracted, scores, strict=True)
        if stores.any()
    ]
    return sorted(candidates, key=lambda candidate: -candidate.score)


class _SearchModel(PythonBasedModel):  # type: ignore[misc]  # TVM has no types
    """Adapter that gives Ansor's search one of the tuner's cost models."""

    def __init__(self, model: cost_models.CostModel) -> None:
        super().__init__()
        self.model = model

    def update(self, inputs: Any, results: Any) -> None:
        """Not called: the coordinator decides when a model is trained."""

    def predict(self, task: SearchTask, states: Sequence[Any]) -> Any:
        """Score states, shape (n_states,), higher is better; -inf where one cannot be lowered."""
        extracted = extract(task, states)
        scores = self.model.predict(extracted)
        return np.where([stores.any() for stores in extracted], scores, -np.inf)
