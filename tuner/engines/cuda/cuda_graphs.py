"""Graphs of CUDA that launch all kernels of a program at once, on tensors at any address.

A graph keeps the addresses that its kernels were captured with. To replay it on other tensors, the
parameters of the kernels that read or write them are replaced in the executable graph, which costs
the host less than a microsecond a kernel and the GPU nothing, where a copy would be one more kernel
for it. See docs/decisions/0119.
"""

import ctypes
import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from ctypes import c_float, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tuner.engines.cuda.branches import Branches
from tuner.engines.cuda.cuda_calls import Cuda, CudaError
from tuner.errors import WorkError

# Other threads may allocate memory while this one captures.
_THREAD_LOCAL = 1
_KERNEL_NODE = 0
_INVALID_VALUE = 1


class _NodeParameters(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v2``."""

    _fields_ = (
        ("func", c_void_p),
        ("launch", c_uint * 7),
        ("parameters", ctypes.POINTER(c_void_p)),
        ("extra", c_void_p),
        ("kern", c_void_p),
        ("context", c_void_p),
    )


@dataclass(frozen=True)
class Span:
    """A tensor of a program in memory: its address and its size in bytes."""

    address: int
    n_bytes: int

    def __contains__(self, address: int) -> bool:
        return self.address <= address < self.address + self.n_bytes


@dataclass
class _Node:
    """A kernel whose parameters are replaced."""

    handle: int
    parameters: _NodeParameters
    pointers: Any


class CudaGraph:
    """A captured program, which runs in a single launch.

    Attributes:
        branches: Order of its calls if kernels may run beside each other; None otherwise.
    """

    def __init__(
        self,
        cuda: Cuda,
        stream: int,
        run: Callable[[], object],
        spans: Sequence[Span],
        branches: Branches | None = None,
    ) -> None:
        """Capture what ``run`` launches.

        Args:
            stream: A stream of the caller alone, into which ``run`` launches.
            run: Launches the kernels.
            spans: Tensors that replays may replace; they do not overlap.
            branches: Order of the calls of the program; None to run them one by one.

        Raises:
            WorkError: If the program cannot be captured.
        """
        self._cuda = cuda
        self.branches = branches
        graph = _capture(cuda, stream, run, branches)
        # Its nodes name those of the executable graph, and own their parameters.
        weakref.finalize(self, cuda.function("cudaGraphDestroy"), graph)
        count = c_size_t()
        cuda.call("cudaGraphGetNodes", graph, None, ctypes.byref(count))
        nodes = (c_void_p * count.value)()
        cuda.call("cudaGraphGetNodes", graph, nodes, ctypes.byref(count))
        self._nodes = {handle: _node(cuda, handle) for handle in (node or 0 for node in nodes)}
        self.n_kernels = len(self._nodes)
        # For each tensor the parameters that point into it: node, value, offset in the tensor.
        self._uses: list[list[tuple[_Node, Any, int]]] = [[] for _ in spans]
        self._bound = [span.address for span in spans]
        for node in self._nodes.values() if spans else ():
            self._find_uses(node, spans)
        self._exec = cuda.made("cudaGraphInstantiate", graph, 0)
        weakref.finalize(self, cuda.function("cudaGraphExecDestroy"), self._exec)

    def replay(self, addresses: list[int], stream: int) -> None:
        """Launch the program on tensors at these addresses, in the order of the spans.

        Raises:
            CudaError: If CUDA refuses.
        """
        if addresses != self._bound:
            changed: dict[int, _Node] = {}
            for uses, address, bound in zip(self._uses, addresses, self._bound, strict=True):
                if address != bound:
                    for node, value, offset in uses:
                        value.value = address + offset
                        changed[node.handle] = node
            for node in changed.values():
                parameters = ctypes.byref(node.parameters)
                self._cuda.call(
                    "cuGraphExecKernelNodeSetParams_v2", self._exec, node.handle, parameters
                )
            self._bound = addresses
        self._cuda.call("cudaGraphLaunch", self._exec, stream)

    def times(self, stream: int, n_turns: int) -> list[float]:
        """Return the times of some replays on the tensors of the last one, seconds.

        They follow one that does not count, without a wait: otherwise the first event would be
        over before the host has launched anything.

        Raises:
            CudaError: If CUDA refuses.
        """
        cuda, milliseconds = self._cuda, c_float()
        events = [cuda.made("cudaEventCreateWithFlags", 0) for _ in range(n_turns + 1)]
        taken = []
        try:
            for event in events:
                cuda.call("cudaGraphLaunch", self._exec, stream)
                cuda.call("cudaEventRecord", event, stream)
            cuda.call("cudaEventSynchronize", events[-1])
            for start, end in pairwise(events):
                cuda.call("cudaEventElapsedTime", ctypes.byref(milliseconds), start, end)
                taken.append(milliseconds.value / 1e3)
        finally:
            for event in events:
                cuda.function("cudaEventDestroy")(event)
        return taken

    def _find_uses(self, node: _Node, spans: Sequence[Span]) -> None:
        for number, size in enumerate(_sizes(self._cuda, node)):
            if size > ctypes.sizeof(c_uint64):
                raise WorkError("a kernel takes a structure, whose addresses cannot be replaced")
            if size < ctypes.sizeof(c_uint64):
                continue
            address = c_uint64.from_address(node.pointers[number]).value
            for uses, span in zip(self._uses, spans, strict=True):
                if address in span:
                    value = c_uint64(address)
                    node.pointers[number] = ctypes.addressof(value)
                    uses.append((node, value, address - span.address))


def _capture(cuda: Cuda, stream: int, run: Callable[[], object], branches: Branches | None) -> int:
    # A tensor in garbage that is collected now would be freed, which ends the capture.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _capture_run(cuda, stream, run, branches)
    finally:
        if collects:
            gc.enable()


def _capture_run(
    cuda: Cuda, stream: int, run: Callable[[], object], branches: Branches | None
) -> int:
    cuda.call("cudaStreamBeginCapture", stream, _THREAD_LOCAL)
    try:
        with branches.serving(stream) if branches is not None else nullcontext():
            run()
    except Exception:
        # The stream must not stay in capture; the error of the run says more than that of its end.
        graph = c_void_p()
        cuda.function("cudaStreamEndCapture")(stream, ctypes.byref(graph))
        if graph.value:
            cuda.function("cudaGraphDestroy")(graph)
        raise
    graph = c_void_p()
    cuda.call("cudaStreamEndCapture", stream, ctypes.byref(graph))
    return graph.value or 0


def _node(cuda: Cuda, handle: int) -> _Node:
    kind = ctypes.c_int()
    cuda.call("cudaGraphNodeGetType", handle, ctypes.byref(kind))
    if kind.value != _KERNEL_NODE:
        raise WorkError("the program has other work for the GPU than kernels")
    parameters = _NodeParameters()
    cuda.call("cuGraphKernelNodeGetParams_v2", handle, ctypes.byref(parameters))
    return _Node(handle, parameters, None)


def _sizes(cuda: Cuda, node: _Node) -> list[int]:
    """Return the sizes of a kernel's parameters, and make a list of pointers to them."""
    sizes: list[int] = []
    offset, size = c_size_t(), c_size_t()
    try:
        while True:
            arguments = (len(sizes), ctypes.byref(offset), ctypes.byref(size))
            cuda.call("cuFuncGetParamInfo", node.parameters.func, *arguments)
            sizes.append(size.value)
    except CudaError as error:
        if error.status != _INVALID_VALUE:
            raise
    if not sizes:
        raise WorkError("CUDA does not tell the parameters of a kernel")
    node.pointers = (c_void_p * len(sizes))(*node.parameters.parameters[: len(sizes)])
    node.parameters.parameters = ctypes.cast(node.pointers, ctypes.POINTER(c_void_p))
    return sizes
