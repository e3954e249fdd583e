"""Programs of TVM's evolutionary search.

Between rounds TVM's strategy keeps the set of programs already measured, which no database holds.
Here every round starts a fresh strategy on the records, requests as many more candidates as were
measured, and drops those whose program was measured. It is single-threaded, because TVM hands work
to threads in the order they become free, and each thread has its own random state.
"""

from typing import Any

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.cost_model import PyCostModel
from tvm.s_tir.meta_schedule.database import MemoryDatabase, TuningRecord
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate
from tvm.s_tir.schedule import Trace

from tuner.cost_models import CostModel
from tuner.engines.relax.search import features, programs
from tuner.engines.relax.search.programs import Program
from tuner.engines.relax.search.rounds import MEASURED_RATIO, Round

# Traces with which an evolution begins; a search of fewer has mutants and random programs alone.
_MIN_POPULATION = 4
# Slower than every record, but below the 1e10 that TVM takes for a failure.
_SLOWEST_SECS = 1e6


def offer(turn: Round, known: set[str], n: int) -> list[Program]:
    """Return the best programs of an evolution of the records by the cost model.

    TVM returns nothing where it cannot draw a first population, which does not mean that the
    space holds no further program.
    """
    if turn.population < _MIN_POPULATION:
        return []
    database = MemoryDatabase()
    workload = database.commit_workload(turn.module)
    arguments = ArgInfo.from_entry_func(turn.module)

    def add(trace: Trace, secs: float) -> None:
        record = TuningRecord(trace, workload, [secs], turn.target, arguments)
        database.commit_tuning_record(record)

    for trace, latency in turn.fastest_timed(int(turn.population * MEASURED_RATIO)):
        add(trace, latency)
    if turn.space.is_seeded:
        for position, trace in enumerate(turn.space.draw_traces(turn.n_first, turn.request.seed)):
            add(trace, _SLOWEST_SECS + position)
    turn.context.pre_tuning(
        max_trials=2**30,
        num_trials_per_iter=turn.request.n_candidates + len(turn.known),
        design_spaces=turn.space.schedules,
        database=database,
        cost_model=_Adapter(turn.model),
    )
    picked = turn.context.generate_measure_candidates() or []
    return programs.fresh((Program(each.sch, "evolution") for each in picked), known, n)


@derived_object
class _Adapter(PyCostModel):  # type: ignore[misc]  # TVM has no types
    """Adapter that gives TVM's search one of the tuner's cost models."""

    def __init__(self, model: CostModel) -> None:
        super().__init__()
        self.model = model

    def load(self, path: str) -> None:
        """Not called: models come as bytes."""

    def save(self, path: str) -> None:
        """Not called: models go as bytes."""

    def update(self, context: Any, candidates: Any, results: Any) -> None:
        """Not called: the coordinator decides when a model is trained."""

    def predict(
        self, context: TuneContext, candidates: list[MeasureCandidate]
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Score candidates, shape (n_candidates,), higher is better."""
        return self.model.predict(features.extract(context, [each.sch for each in candidates]))
