"""Loading and running of built libraries."""

import atexit
import ctypes
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import tvm
import tvm_ffi
from tvm.runtime.vm import VirtualMachine

from tuner.engines.base import NetworkRun, ObservedCall, ProfiledRun, TimedCall
from tuner.engines.cuda import cuda_events
from tuner.engines.relax.codegen import scratch
from tuner.engines.relax.codegen.weights import WEIGHTS, load_weights
from tuner.engines.relax.library.device_arrays import ArrayReader, DeviceArray, Place, stream_of
from tuner.engines.relax.library.gpu_programs import GpuProgram, GpuQueue
from tuner.engines.relax.target import cudart, devices
from tuner.engines.runtime import call_observer, onednn
from tuner.engines.runtime.call_timers import CallTimers
from tuner.errors import RequestError
from tuner.library import manifest
from tuner.library.arrays import read_arrays, write_arrays
from tuner.library.processors import check_library
from tuner.library.wrapper import NamedLibrary
from tuner.workers import worker_process

Array = np.ndarray[Any, Any]
_T = TypeVar("_T")
_WARM_UPS = 2
# Number of the CPU among the devices of DLPack.
_CPU = 1
_LEGACY_STREAM = 0
_array_item = tvm_ffi.get_global_func("ffi.ArrayGetItem")


@dataclass(frozen=True)
class Program:
    """A function of a library, its weights and the device it runs on.

    See :class:`tuner.library.manifest.Program`.

    Attributes:
        gpu: Its runs on a GPU; None on a CPU.
    """

    inputs: manifest.Inputs
    function: Any
    weights: tuple[Any, ...]
    device: Any
    gpu: GpuProgram | None = None

    def run(self, tensors: Sequence[Any]) -> Any:
        """Run on tensors in the order of the inputs; return device tensors."""
        return self.function(*tensors, *self.weights)

    def results(self, tensors: Sequence[Any]) -> list[Any]:
        """Run on tensors as :meth:`run`; return the outputs, alone or not, as a list."""
        returned = self.function(*tensors, *self.weights)
        if hasattr(returned, "data_ptr"):
            return [returned]
        # An iterator over the array takes longer than a small network.
        return [_array_item(returned, number) for number in range(len(returned))]

    def runner(self, tensors: Sequence[Any]) -> Callable[[], Any]:
        """Return a function that runs on tensors, waits, and returns device tensors."""
        if self.gpu is None:
            return partial(self.run, tensors)
        gpu, outputs = self.gpu, self.gpu.new_outputs()

        def run() -> list[Any]:
            gpu.launch_and_wait(tensors, outputs)
            return outputs

        return run


class Library(NamedLibrary):
    """A compiled network, callable on arrays by input name.

    It holds one program per set of input shapes; the shapes of a call choose. On a CPU it is not
    thread-safe: calls must come one at a time. On a GPU any thread may call it; calls run one after
    the other.

    Attributes:
        programs: One program per set of input shapes.
        inputs: Shape and dtype by input name, of the first program.
        outputs: Names of the outputs, in order.
        n_outputs: Number of outputs of each kernel call that a profile times, by its number.
    """

    _queue: GpuQueue | None = None

    def __init__(self, folder: Path) -> None:
        described = manifest.read(folder)
        check_library(described, folder)
        weights = [WEIGHTS] if described.weights else []
        manifest.verify(folder, described, [manifest.LIBRARY, *weights])
        self.outputs = described.returned
        self._output_names = frozenset(self.outputs)
        self.n_outputs = [call.n_outputs for call in described.kernel_calls]
        device = devices.find_device(described.target)
        if any(onednn.is_call(subgraph.variant) for subgraph in described.subgraphs):
            onednn.check(str(described.device.get(onednn.NAME, "")))
        file = _own_name(folder / manifest.LIBRARY)
        self._vm = VirtualMachine(tvm_ffi.load_module(file), device)
        tensors = load_weights(folder / WEIGHTS, described.weights, device)
        if device.dlpack_device_type() != _CPU:
            scratch.install(file)
            _on_gpus.add(self)
            self._queue = GpuQueue(device, self._vm[manifest.WORKSPACE]())
            _check_at_exit()
        self.programs = tuple(
            self._program(program, [tensors[index] for index in program.weights], device)
            for program in described.programs
        )
        self.inputs = self.programs[0].inputs
        self._by_specs = {
            tuple(program.inputs[name] for name in self.inputs): program
            for program in self.programs
        }

    def __del__(self) -> None:
        """Keep memory that CUDA cannot free; see :func:`_keep`."""
        if self.has_failed():
            _keep(self)

    def has_failed(self) -> bool:
        """Return whether CUDA no longer works in this process; see :class:`GpuQueue`."""
        return self._queue is not None and self._queue.has_failed()

    def run_arrays(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Run the network.

        Args:
            arrays: An array per input name, of the shapes and dtypes of one of :attr:`programs`.

        Returns:
            An array per output name.

        Raises:
            ValueError: If an input is missing, unknown, or of another shape or dtype.
        """
        program = self.program_for(arrays)
        if program.gpu is not None:
            values = program.gpu.run([np.asarray(arrays[name]) for name in program.inputs])
            return dict(zip(self.outputs, values, strict=True))
        return self.fetch(program.run(copy_inputs(program, arrays)))

    def run_on_device(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any] | None = None,
        stream: Any = None,
    ) -> dict[str, Any]:
        """Run the network on a GPU; see :class:`tuner.library.loading.DeviceLibrary`."""
        given = outputs or {}
        if self._queue is None:
            raise RequestError("the library runs on a CPU: call it with arrays of NumPy")
        for name in given:
            if name not in self._output_names:
                names = ", ".join(self.outputs)
                raise ValueError(f"unknown output {name!r}; outputs are {names}")
        handle = stream_of(stream, inputs.values())
        reader = ArrayReader(self._queue.number, handle)
        read = reader.read("input", inputs)
        program = self._program_at(read)
        gpu = program.gpu
        assert gpu is not None
        written = reader.read("output", given)
        if len(written) < len(self.outputs):
            own, lease = gpu.given_outputs(handle)
        places = [read[name] for name in program.inputs]
        returned = {}
        for number, (name, spec) in enumerate(zip(self.outputs, gpu.output_specs, strict=True)):
            place = written.get(name)
            if place is None:
                tensor = own.tensors[number]
                place = own.addresses[number], spec, tensor
                returned[name] = DeviceArray(tensor, spec, self._queue, lease)
            elif place[1] != spec:
                raise ValueError(_misfit(name, place[1], spec))
            else:
                returned[name] = given[name]
            places.append(place)
        if not gpu.replay([place[0] for place in places], handle):
            tensors = [reader.tensor(place[2]) for place in places]
            gpu.launch(tensors[: len(inputs)], tensors[len(inputs) :], handle)
        return returned

    def _program_at(self, places: Mapping[str, Place]) -> Program:
        """Return the program for arrays at these places; see :meth:`program_for`."""
        try:
            program = self._by_specs.get(tuple([places[name][1] for name in self.inputs]))
        except KeyError:
            program = None
        if program is not None and len(places) == len(self.inputs):
            return program
        described = {
            name: SimpleNamespace(shape=shape, dtype=dtype)
            for name, (_, (shape, dtype), _) in places.items()
        }
        return self.program_for(described)

    def _program(self, program: manifest.Program, weights: list[Any], device: Any) -> Program:
        function, gpu = self._vm[program.entry], None
        if self._queue is not None and program.memory is not None:
            specs = tuple(program.inputs.values())
            gpu = GpuProgram(self._queue, function, weights, specs, program.outputs, program.memory)
        return Program(program.inputs, function, tuple(weights), device, gpu)

    def program_for(self, inputs: Mapping[str, Any]) -> Program:
        """Return the program for arrays of these shapes.

        Raises:
            ValueError: If no program has these shapes.
        """
        try:
            program = self._by_specs.get(tuple(_spec(inputs[name]) for name in self.inputs))
        except (KeyError, AttributeError):
            program = None
        if program is not None and len(inputs) == len(self.inputs):
            return program
        unknown = sorted(set(inputs) - set(self.inputs))
        if unknown:
            raise ValueError(f"unknown input {unknown[0]!r}; inputs are {', '.join(self.inputs)}")
        for name, (shape, dtype) in self.inputs.items():
            array = inputs.get(name)
            if array is None:
                raise ValueError(f"input {name!r} of shape {shape} and dtype {dtype} is missing")
            if not hasattr(array, "dtype") or not hasattr(array, "shape"):
                raise ValueError(f"input {name!r} must be an array, got {type(array).__name__}")
        raise ValueError(self._refusal({name: _spec(inputs[name]) for name in self.inputs}))

    def fetch(self, returned: Any) -> dict[str, Array]:
        """Copy device tensors back, by output name."""
        is_one = hasattr(returned, "numpy") or isinstance(returned, tvm.runtime.ShapeTuple)
        values = [returned] if is_one else list(returned)
        return {name: _fetched(value) for name, value in zip(self.outputs, values, strict=True)}

    def _refusal(self, given: manifest.Inputs) -> str:
        for name, (shape, dtype) in given.items():
            accepted = list(dict.fromkeys(program.inputs[name] for program in self.programs))
            if (shape, dtype) not in accepted:
                choices = " or ".join(f"shape {s} and dtype {d}" for s, d in accepted)
                return f"input {name!r} must have {choices}, got {shape} and {dtype}"
        shapes = "; ".join(
            ", ".join(f"{name} {shape}" for name, (shape, _) in program.inputs.items())
            for program in self.programs
        )
        return f"no program has these shapes together; the library has {shapes}"


def _misfit(name: str, given: manifest.TensorSpec, spec: manifest.TensorSpec) -> str:
    (shape, dtype), (other_shape, other_dtype) = spec, given
    return (
        f"output {name!r} must have shape {shape} and dtype {dtype}, got {tuple(other_shape)} and "
        f"{other_dtype}"
    )


def copy_inputs(program: Program, inputs: Mapping[str, Array]) -> list[Any]:
    """Copy the inputs to the device, in the order in which the program takes them."""
    return [
        # NumPy's ascontiguousarray turns a scalar into a vector.
        tvm.runtime.tensor(np.asarray(inputs[name], order="C"), program.device)
        for name in program.inputs
    ]


def _retiring(function: Callable[[NetworkRun], _T]) -> Callable[[NetworkRun], _T]:
    """Return a function that keeps the memory of a call and retires this process if CUDA fails."""

    @wraps(function)
    def run(request: NetworkRun) -> _T:
        try:
            return function(request)
        except Exception as error:
            library = _loaded.get(request.library)
            if library is not None and library.has_failed():
                # The frames that it passed hold tensors.
                _keep(error)
                worker_process.retire()
            raise

    return run


@_retiring
def run_network(request: NetworkRun) -> tuple[float, ...]:
    """Run a library and time it; see :class:`Engine`."""
    library = _load(request.library)
    stored = read_arrays(request.inputs)
    arrays = {name: stored[name] for name in library.inputs}
    program = library.program_for(arrays)
    run = program.runner(copy_inputs(program, arrays))
    for _ in range(_WARM_UPS):
        returned = run()
    if request.outputs:
        write_arrays(request.outputs, library.fetch(returned))
    return tuple(_time(run) for _ in range(request.n_runs))


def launch_note(library: str, inputs: str) -> str:
    """Return how a library runs on a GPU; see :class:`Engine`."""
    arrays = read_arrays(inputs)
    loaded = _load(library)
    program = loaded.program_for({name: arrays[name] for name in loaded.inputs})
    return "" if program.gpu is None else program.gpu.note


@_retiring
def profile_network(request: NetworkRun) -> tuple[ProfiledRun, ...]:
    """Run a library and time its calls; see :class:`Engine`."""
    library = _load(request.library)
    arrays = read_arrays(request.inputs)
    program = library.program_for({name: arrays[name] for name in library.inputs})
    tensors = copy_inputs(program, arrays)
    file = str(Path(request.library) / manifest.LIBRARY)
    timers = CallTimers.open(Path(file), len(library.n_outputs))
    if program.gpu is None:
        for _ in range(_WARM_UPS):
            program.run(tensors)
        return tuple(_profile(program, tensors, timers) for _ in range(request.n_runs))
    # The timers record events in the legacy stream.
    outputs = program.gpu.new_outputs()
    launch = partial(program.gpu.launch_each, tensors, outputs, _LEGACY_STREAM)
    events = cuda_events.open_timers(timers, file, cudart.preload())
    for _ in range(1 + _WARM_UPS):
        secs = cuda_events.time_launch(launch, program.device.sync)
    return tuple(events.profile(launch, secs) for _ in range(request.n_runs))


@_retiring
def observe_network(request: NetworkRun) -> tuple[ObservedCall, ...]:
    """Run a library and observe its calls; see :class:`Engine`."""
    library = _load(request.library)
    arrays = read_arrays(request.inputs)
    program = library.program_for({name: arrays[name] for name in library.inputs})
    tensors = copy_inputs(program, arrays)
    file = Path(request.library) / manifest.LIBRARY
    return call_observer.observe(file, library.n_outputs, lambda: program.run(tensors))


def _profile(program: Program, tensors: Sequence[Any], timers: CallTimers) -> ProfiledRun:
    timers.start()
    try:
        start = time.perf_counter_ns()
        program.run(tensors)
        end = time.perf_counter_ns()
    finally:
        spans = timers.stop()
    calls = (
        TimedCall(call, (began - start) / 1e9, (ended - began) / 1e9)
        for call, began, ended in spans
    )
    return ProfiledRun((end - start) / 1e9, tuple(calls))


# Number of each file that was loaded, by its device and inode.
_numbers: dict[tuple[int, int], int] = {}


def _own_name(path: Path) -> str:
    """Return a path that names this file alone, although another was loaded by the same path.

    The dynamic linker compares names first: for a library that was built again, it would return
    the code of the former one.
    """
    stat = path.stat()
    number = _numbers.setdefault((stat.st_dev, stat.st_ino), len(_numbers) + 1)
    digits = f"{number:b}".replace("1", "/.").replace("0", "/")
    return f"{path.parent}{digits}/{path.name}"


def _spec(array: Any) -> manifest.TensorSpec:
    return tuple(array.shape), str(array.dtype)


def _fetched(value: Any) -> Array:
    """Copy a result of a program, either a tensor or a shape."""
    if isinstance(value, tvm.runtime.ShapeTuple):
        return np.array(list(value), np.int64)
    return np.asarray(value.numpy())


# Libraries that hold memory of a GPU.
_on_gpus: weakref.WeakSet[Library] = weakref.WeakSet()


# They are held during a fork: other hooks may drop libraries before the one of this module runs.
_held: list[Library] = []


def _keep(owner: object) -> None:
    """Keep the memory of a GPU forever, because TVM aborts a process that cannot free it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


@cache
def _check_at_exit() -> None:
    """Check libraries before the finalizers of their queues run, which were registered before."""
    atexit.register(_keep_if_failed)


def _keep_if_failed() -> None:
    """Keep the memory of libraries if CUDA no longer works when the process ends."""
    for library in list(_on_gpus):
        if library.has_failed():
            _keep(library)


def _keep_forever() -> None:
    """Keep the memory of GPUs in a forked process, where CUDA cannot free it."""
    for library in _held:
        _keep(library)
    _held.clear()


os.register_at_fork(
    before=lambda: _held.extend(_on_gpus),
    after_in_parent=_held.clear,
    after_in_child=_keep_forever,
)

_loaded: dict[str, Library] = {}


def _load(folder: str) -> Library:
    """Load a library once per process, so that the turns of a comparison use a warm one."""
    if folder not in _loaded:
        _loaded[folder] = Library(Path(folder))
    return _loaded[folder]


def _time(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
