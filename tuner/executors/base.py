"""The contract of executors: where worker functions run, whoever starts the processes."""

from collections.abc import Sequence
from typing import Any, Protocol, Self

from tuner.devices.runners.base import Runner
from tuner.engines.base import BuildRequest
from tuner.workers.base import Call


class Executor(Protocol):
    """Builders, anywhere, and the runners of devices.

    Its methods return at once and are called by one thread. The time-out of a call counts from
    when a worker takes it; a worker that exceeds it is killed and replaced.
    """

    @property
    def n_builders(self) -> int:
        """Calls that builders make side by side, now."""

    @property
    def runners(self) -> Sequence[Runner]:
        """The devices that can measure now; they may come and go."""

    def warm_up(self) -> Sequence[Call]:
        """Start processes and their imports, for whoever does not want to wait for them later."""

    def submit(self, function: str, *args: Any, timeout_secs: float) -> Call:
        """Call a function of the engine in a builder."""

    def train(self, *args: Any, timeout_secs: float) -> Call:
        """Train a cost model in a builder; see :func:`tuner.cost_models.training.train`."""

    def build(self, request: BuildRequest, *, timeout_secs: float) -> Call:
        """Build a candidate in a builder.

        Returns:
            A call whose BuildResult names an artifact that every runner of this executor finds
            under that name. Where it lies is the executor's affair: ``request.out`` is not read.
        """

    def discard(self, artifact: str) -> None:
        """Forget an artifact; one that is not known is none."""

    def close(self) -> None:
        """Kill all workers; calls in flight are lost."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None: ...
