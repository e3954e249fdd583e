"""The contract of peers: runtimes that run the model itself, each in a process of its own.

A peer is a module with the functions of :class:`Peer`. It loads a model once per process.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, Protocol

import numpy as np

from tuner.engines.base import NetworkRun
from tuner.errors import RequestError, summary
from tuner.library.arrays import Array, read_arrays, write_arrays

Device = Literal["cpu", "cuda"]
_N_WARM_UPS = 2


@dataclass(frozen=True)
class PeerModel:
    """A model for a peer, and how to run it.

    Attributes:
        path: Path of the model, not cleaned.
        inputs: Shape and dtype by name of every input.
        symbols: Size by name of the dynamic dimensions.
        n_threads: Threads for one operator on the CPU.
        device: Device of the library; a peer that cannot use it runs on the CPU.
    """

    path: str
    inputs: Mapping[str, tuple[tuple[int, ...], str]]
    symbols: Mapping[str, int]
    n_threads: int
    device: Device


@dataclass(frozen=True)
class PeerInfo:
    """A peer that has loaded a model: its version, and the device that it runs on."""

    version: str
    device: Device


@dataclass(frozen=True)
class PeerNode:
    """A node of the graph that a peer runs.

    Attributes:
        name: Name of the node.
        operator: Operator that it computes.
        n_elements: Elements of its first output; 0 if unknown.
        flop: Operations of a convolution or product; 0 for other nodes.
        secs: Median duration, seconds.
    """

    name: str
    operator: str
    n_elements: int
    flop: float
    secs: float


class Peer(Protocol):
    """The functions of a peer's module."""

    def load_model(self, model: PeerModel) -> PeerInfo:
        """Load a model.

        Raises:
            RequestError: If the runtime cannot load the model.
        """

    def run_model(self, model: PeerModel, request: NetworkRun) -> tuple[float, ...]:
        """Run a model and time it, like :meth:`Engine.run_network` runs a library.

        Outputs are stored by position, as ``output_0`` and so on, bfloat16 as float32.

        Args:
            model: The model; it is loaded unless it is loaded already.
            request: Inputs, outputs and how many runs; its library is not used.

        Returns:
            Seconds of each timed run, from inputs on the device to outputs on the device.

        Raises:
            RequestError: If the runtime cannot run the model.
        """


class ProfilingPeer(Peer, Protocol):
    """The functions of a peer that can time the nodes of a model."""

    def profile_model(self, model: PeerModel, request: NetworkRun) -> tuple[PeerNode, ...]:
        """Run a model and time its nodes; return them in the order in which they ran.

        Raises:
            RequestError: If the runtime cannot load or run the model.
        """


def make_node(
    name: str,
    operator: str,
    inputs: Sequence[Sequence[int]],
    output: Sequence[int],
    secs: Sequence[float],
) -> PeerNode:
    """Describe a node by the shapes of its inputs and of its first output.

    A weight of rank r + 1 for data of rank r has its groups on the first axis.
    """
    kind = operator.lower()
    n_terms = 0
    if len(inputs) >= 2 and "conv" in kind:
        data, weight = inputs[:2]
        n_terms = math.prod(weight[1 + len(weight) - len(data) :])
    elif inputs and inputs[0] and any(word in kind for word in ("gemm", "matmul", "connected")):
        n_terms = inputs[0][-1]
    n_elements = math.prod(output)
    return PeerNode(name, operator, n_elements, 2.0 * n_elements * n_terms, median(secs))


def read_inputs(model: PeerModel, request: NetworkRun) -> dict[str, Array]:
    """Read the inputs of a run; those that cleaning dropped as they have no use are zeros."""
    arrays = read_arrays(request.inputs)
    for name, (shape, dtype) in model.inputs.items():
        if name not in arrays:
            arrays[name] = np.zeros(shape, dtype)
    return arrays


def time_runs(
    run: Callable[[], Any], fetch: Callable[[Any], Sequence[Array]], request: NetworkRun
) -> tuple[float, ...]:
    """Warm up, store the outputs if the request asks for them, and time runs.

    Args:
        run: Runs the model once and waits for its end.
        fetch: Copies what ``run`` returned to arrays of this process.
        request: Outputs and how many runs.

    Raises:
        RequestError: If the first runs fail.
    """
    try:
        for _ in range(_N_WARM_UPS):
            returned = run()
    except Exception as error:  # runtimes raise types of their own, which cannot be pickled
        raise RequestError(f"the peer cannot run the model: {summary(error)}") from error
    if request.outputs:
        arrays = {f"output_{index}": array for index, array in enumerate(fetch(returned))}
        write_arrays(request.outputs, arrays)
    return tuple(_time(run) for _ in range(request.n_runs))


def _time(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
