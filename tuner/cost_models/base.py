"""The contract of cost models and their training sets."""

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
        features: One array per trial, shape (n_stores, width), with at least one store.
        latencies: Latencies, seconds, shape (n_samples,); inf for a failed trial.
        tasks: Task of each trial, shape (n_samples,); only trials of one task are comparable.

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
        """Return the labels: best latency of the task / latency of the trial, 0 if it failed.

        Ansor (OSDI'20, section 5.2) and MetaSchedule normalise in the same way.
        """
        _, task = np.unique(self.tasks, return_inverse=True)
        best_secs = np.full(task.max(initial=-1) + 1, np.inf)
        np.minimum.at(best_secs, task, self.latencies)
        ran = np.isfinite(self.latencies)
        return np.divide(best_secs[task], self.latencies, out=np.zeros(len(task)), where=ran)


class CostModel(Protocol):
    """A model that scores candidates; a higher score predicts a lower latency.

    A model is a pure function of its settings and the last training set: equal ones give equal
    scores, in this process or in another. Instances are not thread-safe.
    """

    @property
    def kind(self) -> str:
        """Name of this kind of model in `registry.create`."""

    @property
    def is_random(self) -> bool:
        """True if the scores are random: the model has learned nothing, or never does."""

    def train(self, samples: TrainingSet) -> None:
        """Train from scratch on these samples; an empty set is allowed.

        Raises:
            ValueError: If a feature array has an invalid shape, or the widths differ.
        """

    def predict(self, features: Sequence[Features]) -> Floats:
        """Score candidates.

        The score of a candidate does not depend on the other candidates of the call. Evolutionary
        search samples parents in proportion to the scores, so they are finite, at least 0, and
        spread out. A model without enough samples returns random scores, which explores.

        Args:
            features: One array per candidate, shape (n_stores, width), with at least one store.

        Returns:
            Scores, shape (n_candidates,).

        Raises:
            ValueError: If an array has an invalid shape, or its width differs from the training
                set's.
        """

    def save(self) -> bytes:
        """Return a blob from which `load` restores a model with bit-exact scores."""

    @classmethod
    def load(cls, blob: bytes) -> Self:
        """Restore a model.

        Raises:
            ValueError: If the blob is damaged, or was saved by another kind or version.
        """
