"""The contract of executors, which run worker functions on this machine and on others."""

from collections.abc import Sequence
from typing import Any, Protocol, Self

from tuner.devices.runners.base import Runner
from tuner.engines.base import BuildRequest
from tuner.workers.base import Call


class Executor(Protocol):
    """Builders, and the runners of devices.

    One thread calls the methods, which return at once. The time-out of a call counts from when a
    worker takes it; a worker that exceeds it is killed and replaced.
    """

    @property
    def n_builders(self) -> int:
        """Number of calls that builders can run at the same time now."""

    @property
    def runners(self) -> Sequence[Runner]:
        """Runners of the devices that can measure now; they may come and go."""

    def warm_up(self) -> Sequence[Call]:
        """Start processes and their imports, so that later calls do not wait for them."""

    def submit(self, function: str, *args: Any, timeout_secs: float) -> Call:
        """Call a function of the engine in a builder."""

    def train(self, *args: Any, timeout_secs: float) -> Call:
        """Train a cost model in a builder; see :func:`tuner.cost_models.training.train`."""

    def build(self, request: BuildRequest, *, timeout_secs: float) -> Call:
        """Build a candidate in a builder.

        Returns:
            A call whose BuildResult names an artifact that every runner of this executor finds
            under that name. The executor chooses its path; ``request.out`` is not read.
        """

    def discard(self, artifact: str) -> None:
        """Forget an artifact; an unknown name does nothing."""

    def close(self) -> None:
        """Kill all workers; calls in flight are lost."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None: ...
