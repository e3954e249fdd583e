"""The round-robin allocator: every task gets the same number of rounds."""

import numpy as np

from scheduler.allocator import check_pick
from scheduler.decision import Decision
from scheduler.state import TaskTable


class RoundRobinAllocator:
    """Picks the task with the fewest rounds, including those in flight, regardless of gains."""

    def choose(self, table: TaskTable, *, sequence: int, n_trials: int) -> Decision | None:
        """Pick the alive task with the fewest rounds; the only term is ``n_rounds``."""
        check_pick(sequence, n_trials)
        if not table.alive.any():
            return None
        turns = np.where(table.alive, table.rounds_given, np.iinfo(np.int64).max)
        task = int(np.argmin(turns))
        return Decision(task, n_trials, "round_robin", {"n_rounds": float(turns[task])})
