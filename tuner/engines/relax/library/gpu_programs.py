"""Runs of the programs of a library on a GPU: captured once, then replayed as one graph launch.

All runs of a library share a workspace and are ordered on the GPU, whatever their streams are;
different libraries share nothing.
"""

import ctypes
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from tuner.engines.cuda.branches import Branches, begin_call
from tuner.engines.cuda.cuda_calls import ENDING, ON_DEVICE, TO_DEVICE, TO_HOST, Cuda, CudaError
from tuner.engines.cuda.cuda_graphs import CudaGraph, Span
from tuner.engines.relax.codegen.scratch import Scratch
from tuner.engines.relax.target import cudart
from tuner.errors import WorkError, summary
from tuner.library.manifest import BEGIN_CALL, ProgramMemory, TensorSpec

Array = np.ndarray[Any, Any]
_LOG = logging.getLogger(__name__)
_NON_BLOCKING = 1
_NO_TIMING = 2
# Replays that decide whether kernels run beside each other, their time at most, seconds, and the
# least gain of it.
_N_REPLAYS, _REPLAY_SECS, _GAIN = 8, 0.02, 0.02
tvm_ffi.register_global_func(BEGIN_CALL, begin_call, override=True)
_use_count = tvm_ffi.get_global_func("testing.object_use_count")


class GpuQueue:
    """The order of a library's runs on its GPU, and what they share.

    Attributes:
        stream: A stream of the library's own.
        device: The GPU.
        number: Its number.
        cuda: CUDA.
        workspace: Blocks of memory between the kernels of a program.
        lock: Held while a run is launched.
    """

    def __init__(self, device: Any, workspace: Any) -> None:
        self.device = device
        self.number = int(device.index)
        self.workspace = workspace
        self.cuda = Cuda(cudart.preload())
        self.lock = threading.Lock()
        self.scratch = Scratch(device)
        self._pid = os.getpid()
        self.cuda.call("cudaSetDevice", device.index)
        self.stream = self.cuda.made("cudaStreamCreateWithFlags", _NON_BLOCKING)
        self._event = self.cuda.made("cudaEventCreateWithFlags", _NO_TIMING)
        self._last = self.stream
        self._capturing = ctypes.c_int()
        self._capturing_place = ctypes.byref(self._capturing)
        weakref.finalize(self, self.cuda.function("cudaStreamDestroy"), self.stream)
        self._closing = weakref.finalize(self, self.cuda.function("cudaEventDestroy"), self._event)
        # The memory of the library must not be freed under a run.
        weakref.finalize(self, self.cuda.function("cudaEventSynchronize"), self._event)

    def check_process(self) -> None:
        """Check that CUDA works in this process.

        Raises:
            WorkError: If it was forked after the library was loaded.
        """
        if os.getpid() != self._pid:
            raise WorkError(
                "this process was forked after the library was loaded, and CUDA does not work in "
                "it; start processes by spawn or forkserver, or load the library in each"
            )

    def has_failed(self) -> bool:
        """Wait for the runs so far; return whether CUDA no longer works in this process."""
        if not self._closing.alive:
            return False
        return self.cuda.function("cudaEventSynchronize")(self._event) in ENDING

    @contextmanager
    def turn(self, stream: int) -> Iterator[bool]:
        """Begin a run and end it; yield True if the stream captures."""
        if self.begin(stream):
            yield True
            return
        try:
            yield False
        finally:
            self.end(stream)

    def begin(self, stream: int) -> bool:
        """Wait on the GPU, not here, for the runs before; return True if the stream captures.

        A stream that is captured by the caller gets no order: an event of other streams would end
        the capture.
        """
        self.check_process()
        self.cuda.call("cudaStreamIsCapturing", stream, self._capturing_place)
        if self._capturing.value:
            return True
        self.wait_on(stream)
        return False

    def end(self, stream: int) -> None:
        """Let later runs wait for what was launched since :meth:`begin`."""
        self.cuda.call("cudaEventRecord", self._event, stream)
        self._last = stream

    def wait_on(self, stream: int) -> None:
        """Make a stream wait for the runs so far."""
        if stream != self._last:
            self.cuda.call("cudaStreamWaitEvent", stream, self._event, 0)


class _Lease:
    """A token that the outputs of a call hold while their memory is in use."""


class OutputSet:
    """Memory for the outputs of a program, lent to one call after the other.

    Attributes:
        tensors: A tensor for each output.
    """

    def __init__(self, tensors: list[Any]) -> None:
        self.tensors = tensors
        self.addresses = [int(tensor.data_ptr()) for tensor in tensors]
        self._lease: weakref.ref[_Lease] | None = None

    def lend(self) -> _Lease | None:
        """Return what the outputs of a call must hold; None if a caller has outputs here."""
        if self._lease is not None and self._lease() is not None:
            return None
        for tensor in self.tensors:
            # Arrays of other libraries that were made from an output refer to its tensor.
            if _use_count(tensor) != 1:
                return None
        lease = _Lease()
        self._lease = weakref.ref(lease)
        return lease


@dataclass(frozen=True)
class _View:
    """An output without memory of its own: a place in another tensor, or an address."""

    number: int
    n_bytes: int
    of: int | None
    place: int


class GpuProgram:
    """A program on a GPU, captured after its first run.

    Attributes:
        output_specs: Shape and dtype of each output.
        reason: Why it is not captured, empty if it is.
    """

    def __init__(
        self,
        queue: GpuQueue,
        function: Any,
        weights: Sequence[Any],
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        memory: ProgramMemory,
    ) -> None:
        self._queue = queue
        self._function = function
        self._weights = weights
        self._memory = memory
        self._input_specs = inputs
        self.output_specs = outputs
        self.reason = "it has not run yet"
        self._is_tried = False
        self._graph: CudaGraph | None = None
        self._views: list[_View] = []
        self._staging: tuple[list[_Staging], list[_Staging]] | None = None
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._constants: dict[int, Any] = {}
        self._given: dict[int, list[OutputSet]] = {}

    @property
    def note(self) -> str:
        """The launch of its kernels, in words."""
        if self._graph is None:
            return f"its kernels are launched one by one: {self.reason}"
        beside = ", some beside each other" if self._graph.branches is not None else ""
        return f"one graph launch of {self._graph.n_kernels} kernels{beside}"

    def new_outputs(self) -> list[Any]:
        """Allocate memory for the outputs."""
        return [tvm.runtime.empty(*spec, self._queue.device) for spec in self.output_specs]

    def launch(self, inputs: Sequence[Any], outputs: Sequence[Any], stream: int) -> None:
        """Launch the program on a stream, and do not wait for it.

        Args:
            inputs: Contiguous tensors on the device, in the order of the program.
            outputs: Memory for all outputs, in order, which overlaps with no input.
            stream: Handle of a stream of the device.

        Raises:
            WorkError: If CUDA fails, or the process was forked.
        """
        with self._queue.lock:
            self._launch(inputs, outputs, stream)

    def replay(self, addresses: list[int], stream: int) -> bool:
        """Launch the graph on the tensors at these addresses, and do not wait for it.

        Args:
            addresses: Addresses of the inputs, then those of the outputs; see :meth:`launch`.
            stream: Handle of a stream of the device.

        Returns:
            False if nothing was launched: there is no graph yet, or the caller captures the stream.

        Raises:
            WorkError: If CUDA fails, or the process was forked.
        """
        with self._queue.lock:
            if self._graph is None or self._queue.begin(stream):
                return False
            try:
                return self._replay(addresses, stream)
            finally:
                self._queue.end(stream)

    def launch_each(self, inputs: Sequence[Any], outputs: Sequence[Any], stream: int) -> None:
        """Launch the kernels one after the other; see :meth:`launch`."""
        with self._queue.lock, self._queue.turn(stream):
            self._run(inputs, outputs, stream)

    def launch_and_wait(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Launch the program on the library's own stream and wait for it; see :meth:`launch`."""
        self.launch(inputs, outputs, self._queue.stream)
        self._queue.cuda.call("cudaStreamSynchronize", self._queue.stream)

    def given_outputs(self, stream: int) -> tuple[OutputSet, _Lease]:
        """Return memory for the outputs of a call, which is the caller's while the lease is held.

        It is memory of an earlier call on the stream whose caller has dropped its outputs, or new.
        """
        with self._queue.lock:
            sets = self._given.setdefault(stream, [])
            for outputs in sets:
                lease = outputs.lend()
                if lease is not None:
                    return outputs, lease
            outputs = OutputSet(self.new_outputs())
            sets.append(outputs)
            lease = outputs.lend()
            assert lease is not None
            return outputs, lease

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Copy inputs to the device, run, and copy the outputs back.

        Raises:
            WorkError: If CUDA fails, or the process was forked.
        """
        cuda, stream = self._queue.cuda, self._queue.stream
        with self._queue.lock:
            self._queue.check_process()
            if self._staging is None:
                self._allocate()
                stage = partial(_Staging, self._queue.cuda)
                self._staging = (
                    list(map(stage, self._inputs, self._input_specs)),
                    list(map(stage, self._outputs, self.output_specs)),
                )
            before, after = self._staging
            for staging, array in zip(before, arrays, strict=True):
                staging.write(array)
                staging.copy(TO_DEVICE, stream)
            self._launch(self._inputs, self._outputs, stream)
            for staging in after:
                staging.copy(TO_HOST, stream)
            cuda.call("cudaStreamSynchronize", stream)
            return [staging.read() for staging in after]

    def _allocate(self) -> None:
        """Allocate tensors that the program is captured with, and that arrays are copied to."""
        if not self._outputs:
            device = self._queue.device
            self._inputs = [tvm.runtime.empty(*spec, device) for spec in self._input_specs]
            self._outputs = self.new_outputs()

    def _launch(self, inputs: Sequence[Any], outputs: Sequence[Any], stream: int) -> None:
        with self._queue.turn(stream) as is_captured:
            if is_captured and not self._is_tried:
                raise WorkError("call the library once before a stream captures it")
            addresses = [tensor.data_ptr() for tensor in (*inputs, *outputs)]
            if is_captured:
                branches = self._graph.branches if self._graph is not None else None
                self._run(inputs, outputs, stream, branches)
            elif not self._replay(addresses, stream):
                self._run(inputs, outputs, stream)
        if not self._is_tried and not is_captured:
            # The run has loaded the kernels, which is not possible in a capture.
            self._is_tried = True
            self._capture(addresses)

    def _replay(self, addresses: list[int], stream: int) -> bool:
        """Launch the graph, if there is one that CUDA accepts."""
        if self._graph is None:
            return False
        try:
            self._graph.replay(addresses, stream)
        except CudaError as error:
            self._graph = None
            self._give_up(error)
            return False
        for view in self._views:
            source = view.place + (0 if view.of is None else addresses[view.of])
            target = addresses[len(self._input_specs) + view.number]
            self._copy(source, target, view.n_bytes, stream)
        return True

    def _run(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        stream: int,
        branches: Branches | None = None,
    ) -> None:
        """Launch the kernels one after the other, or in the order of branches if they are given."""
        with branches.serving(stream) if branches is not None else nullcontext():
            returned = self._call(inputs, outputs, stream)
        for number, value in enumerate(returned):
            if number not in self._memory.written:
                output = outputs[number]
                self._copy(value.data_ptr(), output.data_ptr(), _n_bytes(output), stream)

    def _call(self, inputs: Sequence[Any], outputs: Sequence[Any], stream: int) -> list[Any]:
        """Call the function of the program; return the outputs as it returns them."""
        written = [outputs[number] for number in self._memory.written]
        arguments = (*inputs, *self._weights, *written, *self._queue.workspace)
        handle = tvm_ffi.use_raw_stream(self._queue.device, stream)
        with self._queue.scratch.serving(), handle:
            returned = self._function(*arguments)
        is_one = hasattr(returned, "data_ptr") or isinstance(returned, tvm.runtime.ShapeTuple)
        values = [returned] if is_one else list(returned)
        return [self._tensor(number, value) for number, value in enumerate(values)]

    def _tensor(self, number: int, value: Any) -> Any:
        """Return a tensor on the device of an output that is a shape, which is a constant."""
        if not isinstance(value, tvm.runtime.ShapeTuple):
            return value
        if number not in self._constants:
            array = np.array(list(value), np.int64)
            self._constants[number] = tvm.runtime.tensor(array, self._queue.device)
        return self._constants[number]

    def _copy(self, source: int, target: int, n_bytes: int, stream: int) -> None:
        self._queue.cuda.call("cudaMemcpyAsync", target, source, n_bytes, ON_DEVICE, stream)

    def _capture(self, addresses: Sequence[int]) -> None:
        """Capture the program, after a run on the tensors at these addresses."""
        returned: list[Any] = []
        try:
            self._allocate()
            tensors = (*self._inputs, *self._outputs)
            spans = [Span(tensor.data_ptr(), _n_bytes(tensor)) for tensor in tensors]

            def run() -> None:
                returned.extend(self._call(self._inputs, self._outputs, self._queue.stream))

            cuda, stream = self._queue.cuda, self._queue.stream
            graph = CudaGraph(cuda, stream, run, spans)
            n_returned = len(returned)
            if self._memory.after:
                # The first run may still use the workspace.
                self._queue.wait_on(stream)
                # New memory may hold indices outside of their tensors.
                for span, address in zip(spans, addresses[: len(self._inputs)], strict=False):
                    if span.address != address:
                        self._copy(address, span.address, span.n_bytes, stream)
                graph = self._faster(graph, run, partial(CudaGraph, cuda, stream, run, spans))
                # Later runs do not wait for this stream.
                cuda.call("cudaStreamSynchronize", stream)
            del returned[n_returned:]
        except Exception as error:  # TVM wraps the errors of CUDA in several types
            self._give_up(error)
            return
        self._views = [
            _view(number, value.data_ptr(), _n_bytes(self._outputs[number]), spans)
            for number, value in enumerate(returned)
            if number not in self._memory.written
        ]
        self._graph = graph
        self.reason = ""

    def _faster(
        self, chain: CudaGraph, run: Callable[[], None], capture: Callable[..., CudaGraph]
    ) -> CudaGraph:
        """Return the graph of kernels one after the other, or that of branches if it is faster."""
        stream = self._queue.stream
        try:
            order = Branches(self._queue.cuda, self._memory.after)
            if self._queue.scratch.is_used:
                with order.serving(None):
                    run()
            beside = capture(branches=order)
            first = max(min(graph.times(stream, 2)) for graph in (chain, beside))
            n_turns = max(1, min(_N_REPLAYS, int(_REPLAY_SECS / max(first, 1e-6))))
            turns = (chain, beside, chain, beside)
            secs = [min(graph.times(stream, n_turns)) for graph in turns]
        except Exception as error:  # an old driver does not know how to capture branches
            _LOG.info("kernels run one after the other: %s", summary(error))
            return chain
        return beside if min(secs[1::2]) < (1 - _GAIN) * min(secs[::2]) else chain

    def _give_up(self, error: Exception) -> None:
        self.reason = summary(error)
        _LOG.warning(
            "the kernels of %s are launched one by one, not as a graph: %s",
            getattr(self._function, "__name__", "a program"),
            self.reason,
        )


class _Staging:
    """Page-locked memory beside a tensor of the device."""

    def __init__(self, cuda: Cuda, tensor: Any, spec: TensorSpec) -> None:
        shape, dtype = spec
        self._cuda = cuda
        self._tensor = tensor
        self._n_bytes = _n_bytes(tensor)
        self._address = cuda.made("cudaMallocHost", max(self._n_bytes, 1))
        weakref.finalize(self, cuda.function("cudaFreeHost"), self._address)
        buffer = (ctypes.c_uint8 * max(self._n_bytes, 1)).from_address(self._address)
        self._array: Array = np.ndarray(shape, _numpy_dtype(dtype), memoryview(buffer))

    def write(self, array: Array) -> None:
        """Fill the memory of the host."""
        np.copyto(self._array, array, casting="no")

    def read(self) -> Array:
        """Return a copy of the memory of the host."""
        return self._array.copy()

    def copy(self, kind: int, stream: int) -> None:
        """Copy between host and device."""
        ends = (self._tensor.data_ptr(), self._address)
        ends = ends if kind == TO_DEVICE else ends[::-1]
        self._cuda.call("cudaMemcpyAsync", *ends, self._n_bytes, kind, stream)


def _view(number: int, address: int, n_bytes: int, spans: Sequence[Span]) -> _View:
    for of, span in enumerate(spans):
        if address in span:
            return _View(number, n_bytes, of, address - span.address)
    return _View(number, n_bytes, None, address)


def _n_bytes(tensor: Any) -> int:
    return int(math.prod(tensor.shape) * tensor.dtype.itemsize)


def _numpy_dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)
