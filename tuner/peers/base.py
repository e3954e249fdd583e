"""The contract of peers: runtimes that run the model itself, each in a process of its own.

A peer is a module with the functions of :class:`Peer`. It loads a model once per process.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from tuner.engines.base import NetworkRun
from tuner.engines.runtime.tensor_digests import TensorDigest
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
    """A peer that has loaded a model: its version, and the device that it runs on.

    Attributes:
        note: Time that it took to compile, or the difference between the outputs that it stores
            and those of the timed runs, for people; empty if there is none.
    """

    version: str
    device: Device
    note: str = ""


@dataclass(frozen=True)
class PeerNode:
    """A node of the graph that a peer runs.

    Attributes:
        operator: Operator that it computes.
        secs: Median duration, seconds.
        origins: Numbers of the model's nodes that it computes, as far as the peer tells.
    """

    name: str
    operator: str
    secs: float
    origins: tuple[int, ...] = ()


@dataclass(frozen=True)
class GraphNode:
    """A node of a model's graph.

    Attributes:
        name: Its name, or that of its first output if it has none.
        inputs: Names of the values that it reads.
        outputs: Names of the values that it writes.
    """

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class ObservedGraph:
    """The graph of a model, and its data in a run.

    Attributes:
        nodes: Nodes by number.
        inputs: Names of the inputs.
        digests: Digests of the values that nodes write, by name.
    """

    nodes: tuple[GraphNode, ...]
    inputs: tuple[str, ...]
    digests: Mapping[str, TensorDigest]


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


def read_inputs(model: PeerModel, request: NetworkRun) -> dict[str, Array]:
    """Read the inputs of a run in C order; unused inputs, which cleaning dropped, are zeros."""
    # TensorRT takes only the address of an input, and a file may store another order.
    read = read_arrays(request.inputs)
    arrays: dict[str, Array] = {name: np.asarray(read[name], order="C") for name in read}
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
