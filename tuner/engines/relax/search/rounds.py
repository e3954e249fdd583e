"""One round of search on a task, as its sources see it."""

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch
from tvm.s_tir.schedule import Trace
from tvm.target import Target

from tuner.cost_models import CostModel
from tuner.engines.base import SearchRequest
from tuner.engines.relax.ir import traces
from tuner.engines.relax.search import features
from tuner.errors import WorkError

if TYPE_CHECKING:
    from tuner.engines.relax.search.programs import Program
    from tuner.engines.relax.search.spaces import Space

# Share of candidates that are near known schedules, and that share among the first of a task.
_NEAR, _NEAR_AT_FIRST, _N_AT_FIRST = 0.5, 0.75, 16
#: Share of the population seeded from records (MetaSchedule's).
MEASURED_RATIO = 0.2


@dataclass(frozen=True, eq=False)
class Round:
    """A round on the workload itself.

    Attributes:
        request: Request, without the records and candidates of variants.
        space: Its search space.
        known: Hashes of all programs that were measured.
    """

    request: SearchRequest
    module: tvm.IRModule
    target: Target
    space: "Space"
    model: CostModel
    known: set[str]

    @property
    def population(self) -> int:
        """Traces of each generation; 0 where an evolution takes too long for what it gives."""
        if self.space.evolves_late and not self.request.measured and self.model.is_random:
            return 0
        return int(self.request.population * self.space.share)

    @property
    def near_share(self) -> float:
        """Share of candidates that are near known schedules: by rule, and mutants of records."""
        return _NEAR_AT_FIRST if len(self.request.measured) < _N_AT_FIRST else _NEAR

    @property
    def n_near(self) -> int:
        """Number of these; the first candidate of a task is its schedule by rule."""
        # Rounds of a single candidate take turns.
        n = int(self.request.n_candidates * self.near_share + (self.request.seed % 2) / 2)
        return max(n, 0 if self.request.measured else 1)

    @property
    def n_first(self) -> int:
        """Traces that are drawn for the first generation."""
        return min(50, self.population // 2)

    @cached_property
    def context(self) -> TuneContext:
        """TVM's context of the search."""
        # Seeds reach TVM as records of the database; it takes all of them.
        is_seeded = self.space.is_seeded
        return TuneContext(
            mod=self.module,
            target=self.target,
            space_generator=self.space.make_generator(self.request.seed),
            search_strategy=EvolutionarySearch(
                population_size=self.population,
                init_measured_ratio=1.0 if is_seeded else MEASURED_RATIO,
                init_min_unmeasured=0 if is_seeded else self.n_first,
                genetic_num_iters=self.request.n_generations,
                eps_greedy=0.0,
            ),
            num_threads=1,
            rand_state=self.request.seed,
        )

    def fastest(self, n: int) -> list[Trace]:
        """Return the traces of the fastest records."""
        return [trace for trace, _ in self.fastest_timed(n)]

    def fastest_timed(self, n: int) -> list[tuple[Trace, float]]:
        """Return the traces of the fastest records with their latencies, seconds.

        Records of another version, which cannot be read, are left out.
        """
        ran = [
            (each.latency, each.module_hash, each.trace)
            for each in self.request.measured
            if each.latency is not None
        ]
        replayed = []
        for latency, _, text in sorted(ran)[:n]:
            with suppress(WorkError):
                replayed.append((traces.replay(self.module, text).trace, latency))
        return replayed

    def score(self, programs: "list[Program]") -> np.ndarray[Any, np.dtype[np.float64]]:
        """Score programs by the cost model, shape (n_programs,), higher is better."""
        schedules = [each.schedule for each in programs]
        return self.model.predict(features.extract(self.context, schedules))
