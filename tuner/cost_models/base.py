"""The contract of a cost model, and the measured trials it learns from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

Features = npt.NDArray[np.floating[Any]]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Measured trials of any number of tasks.

    Args:
        features: One array a trial, shape (n_stores, width), with at least one store.
        latencies: Seconds, shape (n_samples,); inf for a failed trial.
        tasks: The task of each trial, shape (n_samples,). Only trials of one task compare.

    Raises:
        ValueError: If the lengths differ, or a latency is not a positive number.
    """

    features: list[Features]
    latencies: Floats
    tasks: Ints

    def __post_init__(self) -> None:
        shape = (len(self.features),)
        if self.latencies.shape != shape or self.tasks.shape != shape:
            raise ValueError(
                f"{shape[0]} feature arrays need as many latencies and tasks, "
                f"got shapes {self.latencies.shape} and {self.tasks.shape}"
            )
        if not (self.latencies > 0).all():
            raise ValueError(f"latencies must be positive, got {self.latencies.min()}")

    def throughputs(self) -> Floats:
        """Return the labels: the best latency of the task over the trial's, 0 for a failed trial.

        Ansor (OSDI'20, section 5.2) and MetaSchedule normalise the same way.
        """
        _, task = np.unique(self.tasks, return_inverse=True)
        best_secs = np.full(task.max(initial=-1) + 1, np.inf)
        np.minimum.at(best_secs, task, self.latencies)
        ran = np.isfinite(self.latencies)
        return np.divide(best_secs[task], self.latencies, out=np.zeros(len(task)), where=ran)


class CostModel(Protocol):
    """Scores candidates; the higher, the faster the candidate should run.

    A model is a pure function of its settings and the last training set: the same two give the
    same scores, in this process or in another. Instances are not safe to share between threads.
    """

    @property
    def kind(self) -> str:
        """The name that `registry.create` knows this model by."""

    def train(self, samples: TrainingSet) -> None:
        """Forget what was learned and learn from these samples; an empty set is allowed.

        Raises:
            ValueError: If a feature array is misshapen, or the widths differ.
        """

    def predict(self, features: Sequence[Features]) -> Floats:
        """Score candidates.

        A score depends on its own candidate only, never on the others of the call. Evolutionary
        search samples parents in proportion to the scores, so they are finite, at least 0, and
        spread out. A model without enough samples spreads its scores by chance, which explores.

        Args:
            features: One array a candidate, shape (n_stores, width), with at least one store.

        Returns:
            Scores, shape (n_candidates,).

        Raises:
            ValueError: If an array is misshapen, or its width is not the one learned.
        """

    def save(self) -> bytes:
        """Return a blob from which `load` gives a model with bit-exact scores."""

    @classmethod
    def load(cls, blob: bytes) -> Self:
        """Restore a model.

        Raises:
            ValueError: If the blob is damaged, or was saved by another kind or version.
        """
