"""Times of a kernel on a GPU of this machine, in a graph of many launches, as networks launch it.

Alone, a kernel of a few microseconds would be timed with its launch, and what the kernel before has
just written would come from memory. Weights do come from memory where those of the network do not
stay in the second-level cache: launches take turns on copies of them.
"""

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi

from tuner.engines.base import EvaluatorSettings
from tuner.engines.cuda import graph_launches
from tuner.engines.cuda.cuda_calls import Cuda
from tuner.engines.cuda.cuda_graphs import CudaGraph
from tuner.engines.relax.target import cudart
from tuner.engines.runtime.timing import Sample

_NON_BLOCKING = 1
# The clocks of a GPU rise with load.
_WARM_UP_SECS, _MAX_WARM_UPS = 10e-3, 256


def has_cold_weights(settings: EvaluatorSettings, l2_bytes: int) -> bool:
    """Return whether the second-level cache loses the weights between two inferences."""
    is_small = graph_launches.stays_cached(settings.network_bytes, l2_bytes)
    return settings.cache_flush and (settings.weights_in_memory or not is_small)


class GraphTimer:
    """Timer of a kernel.

    Args:
        device: The GPU.
        kernel: Launches the kernel, given its arguments.
        arguments: Tensors on the device, outputs last.
        weight_indices: Indices of the arguments that are weights.
        settings: Repetitions and cache state of its samples.

    Raises:
        WorkError: If CUDA fails.
    """

    def __init__(
        self,
        device: Any,
        kernel: Callable[..., object],
        arguments: Sequence[Any],
        weight_indices: Sequence[int],
        settings: EvaluatorSettings,
    ) -> None:
        self._device, self._kernel = device, kernel
        self._cuda = Cuda(cudart.preload())
        self._cuda.call("cudaSetDevice", device.index)
        self._stream = self._cuda.made("cudaStreamCreateWithFlags", _NON_BLOCKING)
        weakref.finalize(self, self._cuda.function("cudaStreamDestroy"), self._stream)
        self._sets = [arguments]
        l2_bytes = int(device.l2_cache_size_bytes or 0)
        weights = [arguments[index] for index in weight_indices]
        if weights and has_cold_weights(settings, l2_bytes):
            n_bytes = sum(math.prod(each.shape) * each.dtype.itemsize for each in weights)
            n_copies = graph_launches.n_weight_copies(n_bytes, l2_bytes) - 1
            self._sets += [self._copied(weight_indices) for _ in range(n_copies)]
        # Copies are made on another stream, and the first launch loads the kernel.
        device.sync()
        self._launch(1)
        self._graph, self.n_launches = self._captured(settings)

    def _copied(self, weight_indices: Sequence[int]) -> list[Any]:
        """Return the arguments with other copies of the weights."""
        arguments = list(self._sets[0])
        for index in weight_indices:
            weight = arguments[index]
            copy = tvm.runtime.empty(weight.shape, weight.dtype, self._device)
            arguments[index] = copy.copyfrom(weight)
        return arguments

    def _captured(self, settings: EvaluatorSettings) -> tuple[CudaGraph, int]:
        """Return a graph of launches and their number, after the clocks have risen."""
        (first,) = self._capture(1).times(self._stream, 1)
        n_least = min(graph_launches.MIN_LAUNCHES, graph_launches.n_fitting(first))
        least = 0.0 if settings.cache_flush else settings.min_repeat_ms / 1e3
        n_launches = max(
            graph_launches.n_launches(first, len(self._sets), n_least),
            math.ceil(least / max(first, 1e-7)),
            settings.number,
        )
        graph = self._capture(n_launches)
        n_warm_ups = math.ceil(_WARM_UP_SECS / max(n_launches * first, 1e-7))
        graph.times(self._stream, min(n_warm_ups, _MAX_WARM_UPS))
        return graph, n_launches

    def take(self, n_samples: int) -> list[Sample]:
        """Sample the time of a launch.

        Raises:
            CudaError: If CUDA fails.
        """
        return [
            Sample(secs / self.n_launches) for secs in self._graph.times(self._stream, n_samples)
        ]

    def _capture(self, n_launches: int) -> CudaGraph:
        return CudaGraph(self._cuda, self._stream, lambda: self._launch(n_launches), ())

    def _launch(self, n_launches: int) -> None:
        with tvm_ffi.use_raw_stream(self._device, self._stream):
            for number in range(n_launches):
                self._kernel(*self._sets[number % len(self._sets)])
