"""Runs of built kernels: comparison of the outputs, then timing, then comparison again."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tuner.engines.base import RunRequest, RunResult
from tuner.engines.runtime.cache_state import Arguments
from tuner.engines.runtime.timing import Sampled, merge
from tuner.engines.verification import checks
from tuner.engines.verification.checks import Array
from tuner.errors import RequestError, error_text

#: Name of the function of an artifact that runs the kernel.
KERNEL = "kernel"


@dataclass(kw_only=True)
class LoadedKernel:
    """A loaded artifact and its arguments; an engine adds how they are bound.

    Attributes:
        inputs: Shape and dtype of each input.
        weight_indices: Indices of the inputs that are constants of every network.
        outputs: Outputs, which are the last arguments of the kernel.
        packed: Packed inputs as the artifact describes them.
        arguments: Inputs as the kernel reads them.
        is_loose: See :class:`checks.Kernel`.
    """

    module: Any
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    weight_indices: list[int]
    outputs: list[Any]
    packed: list[dict[str, Any]]
    arguments: list[Any] = field(default_factory=list)
    is_loose: bool = False

    @property
    def arguments_by_use(self) -> Arguments:
        """Inputs, by what they are in a network."""
        return Arguments.split(self.arguments, self.weight_indices)

    def bind(self, arrays: Sequence[Array]) -> None:
        """Copy inputs to the device, packed as the kernel expects them."""
        raise NotImplementedError

    def call(self) -> list[Array]:
        """Run once on spoiled outputs and return them."""
        for output in self.outputs:
            output.copyfrom(checks.spoiled(output.shape, str(output.dtype)))
        self.module[KERNEL](*self.arguments, *self.outputs)
        return [output.numpy() for output in self.outputs]


K = TypeVar("K", bound=LoadedKernel)
Sampler = Callable[[K, RunRequest], Sampled]


def run(
    load: Callable[[RunRequest], K],
    request: RunRequest,
    sample: Sampler[K],
    guard: AbstractContextManager[object] | None = None,
) -> RunResult:
    """Compare and time one artifact; see :class:`Engine`.

    Args:
        sample: Samples the run time of a loaded kernel.
        guard: Sees the errors of the candidate before they become a result.
    """
    try:
        with guard or nullcontext():
            kernel = load(request)
            verdict = checks.check(kernel, request.references)
            if verdict.error_kind:
                return verdict
            sampled = sample(kernel, request)
            verdict = checks.check_again(kernel, request.references, verdict)
            return verdict if verdict.error_kind else sampled.result(verdict)
    except (OSError, RequestError):
        raise  # an unreadable artifact or a wrong device is not a failure of the candidate
    except Exception as error:  # an error of a candidate is a result
        return RunResult(error_kind="run_error", error_text=error_text(error))


def run_interleaved(
    load: Callable[[RunRequest], K],
    requests: Sequence[RunRequest],
    sample: Sampler[K],
    n_turns: int,
) -> list[RunResult]:
    """Time artifacts in turns, every other one backwards; see :func:`run`."""
    kernels = [load(request) for request in requests]
    turns: list[list[Sampled]] = [[] for _ in kernels]
    verdicts = [
        checks.check(kernel, request.references)
        for kernel, request in zip(kernels, requests, strict=True)
    ]
    correct = [i for i, verdict in enumerate(verdicts) if not verdict.error_kind]
    for turn in range(n_turns):
        order = correct if turn % 2 == 0 else reversed(correct)
        for i in order:
            turns[i].append(sample(kernels[i], requests[i]))
    for i in correct:
        verdict = checks.check_again(kernels[i], requests[i].references, verdicts[i])
        verdicts[i] = verdict if verdict.error_kind else merge(turns[i]).result(verdict)
    return verdicts
