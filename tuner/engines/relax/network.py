"""Loading and running of built libraries."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from tuner.engines import call_observer, cuda_events, onednn
from tuner.engines.base import NetworkRun, ObservedCall, ProfiledRun, TimedCall
from tuner.engines.call_timers import CallTimers
from tuner.engines.relax import cudart, devices
from tuner.engines.relax.weights import WEIGHTS, load_weights
from tuner.library import manifest
from tuner.library.arrays import read_arrays, write_arrays
from tuner.library.processors import check_library

Array = np.ndarray[Any, Any]
_WARM_UPS = 2
# Number of the CPU among the devices of DLPack.
_CPU = 1


@dataclass(frozen=True)
class Program:
    """A function of a library, its weights and the device it runs on.

    See :class:`tuner.library.manifest.Program`.
    """

    inputs: manifest.Inputs
    function: Any
    weights: tuple[Any, ...]
    device: Any

    def run(self, tensors: Sequence[Any]) -> Any:
        """Run on tensors in the order of the inputs; return device tensors."""
        return self.function(*tensors, *self.weights)


class Library:
    """A compiled network, callable on arrays by input name.

    It holds one program per set of input shapes; the shapes of a call choose. Not thread-safe:
    calls must come one at a time.

    Attributes:
        programs: One program per set of input shapes.
        inputs: Shape and dtype by input name, of the first program.
        outputs: Names of the outputs, in order.
        n_outputs: Number of outputs of each kernel call that a profile times, by its number.
    """

    def __init__(self, folder: Path) -> None:
        described = manifest.read(folder)
        check_library(described, folder)
        manifest.verify(folder, described)
        self.outputs = described.returned
        self.n_outputs = [call.n_outputs for call in described.kernel_calls]
        device = devices.find_device(described.target)
        if any(onednn.is_call(subgraph.variant) for subgraph in described.subgraphs):
            onednn.check(str(described.device.get(onednn.NAME, "")))
        module = tvm_ffi.load_module(_own_name(folder / manifest.LIBRARY))
        self._vm = relax.VirtualMachine(module, device)
        weights = load_weights(folder / WEIGHTS, described.weights, device)
        self.programs = tuple(
            Program(
                program.inputs,
                self._vm[program.entry],
                tuple(weights[index] for index in program.weights),
                device,
            )
            for program in described.programs
        )
        self.inputs = self.programs[0].inputs
        self._by_shapes = {_signature(program.inputs): program for program in self.programs}

    def __call__(
        self, inputs: Mapping[str, Array] | None = None, **named: Array
    ) -> dict[str, Array]:
        """Run the network.

        Args:
            inputs: An array per input name, of the shapes and dtypes of one of :attr:`programs`.
            **named: The same, as keywords.

        Returns:
            An array per output name.

        Raises:
            ValueError: If an input is missing, unknown, or of another shape or dtype.
        """
        arrays = {**(inputs or {}), **named}
        program = self.program_for(arrays)
        return self.fetch(program.run(copy_inputs(program, arrays)))

    def program_for(self, inputs: Mapping[str, Array]) -> Program:
        """Return the program for arrays of these shapes.

        Raises:
            ValueError: If no program has these shapes.
        """
        unknown = sorted(set(inputs) - set(self.inputs))
        if unknown:
            raise ValueError(f"unknown input {unknown[0]!r}; inputs are {', '.join(self.inputs)}")
        for name, (shape, dtype) in self.inputs.items():
            array = inputs.get(name)
            if array is None:
                raise ValueError(f"input {name!r} of shape {shape} and dtype {dtype} is missing")
            if not hasattr(array, "dtype") or not hasattr(array, "shape"):
                raise ValueError(f"input {name!r} must be an array, got {type(array).__name__}")
        given = {name: (tuple(inputs[name].shape), str(inputs[name].dtype)) for name in self.inputs}
        try:
            return self._by_shapes[_signature(given)]
        except KeyError:
            raise ValueError(self._refusal(given)) from None

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


def copy_inputs(program: Program, inputs: Mapping[str, Array]) -> list[Any]:
    """Copy the inputs to the device, in the order in which the program takes them."""
    return [
        # NumPy's ascontiguousarray turns a scalar into a vector.
        tvm.runtime.tensor(np.asarray(inputs[name], order="C"), program.device)
        for name in program.inputs
    ]


def run_network(request: NetworkRun) -> tuple[float, ...]:
    """Run a library and time it; see :class:`Engine`."""
    library = _load(request.library)
    stored = read_arrays(request.inputs)
    arrays = {name: stored[name] for name in library.inputs}
    program = library.program_for(arrays)
    tensors = copy_inputs(program, arrays)
    for _ in range(_WARM_UPS):
        returned = program.run(tensors)
    program.device.sync()
    if request.outputs:
        write_arrays(request.outputs, library.fetch(returned))
    return tuple(_time(program, tensors) for _ in range(request.n_runs))


def profile_network(request: NetworkRun) -> tuple[ProfiledRun, ...]:
    """Run a library and time its calls; see :class:`Engine`."""
    library = _load(request.library)
    arrays = read_arrays(request.inputs)
    program = library.program_for({name: arrays[name] for name in library.inputs})
    tensors = copy_inputs(program, arrays)
    file = str(Path(request.library) / manifest.LIBRARY)
    timers = CallTimers.open(Path(file), len(library.n_outputs))
    for _ in range(_WARM_UPS):
        program.run(tensors)
    program.device.sync()
    if program.device.dlpack_device_type() == _CPU:
        return tuple(_profile(program, tensors, timers) for _ in range(request.n_runs))
    events = cuda_events.open_timers(timers, file, cudart.preload())
    launch = partial(program.run, tensors)
    secs = cuda_events.time_launch(launch, program.device.sync)
    return tuple(events.profile(launch, secs) for _ in range(request.n_runs))


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
        program.device.sync()
        end = time.perf_counter_ns()
    finally:
        spans = timers.stop()
    calls = (
        TimedCall(call, (began - start) / 1e9, (ended - began) / 1e9)
        for call, began, ended in spans
    )
    return ProfiledRun((end - start) / 1e9, tuple(calls))


# Files that were loaded by each path, oldest first.
_files: dict[str, list[tuple[int, int]]] = {}


def _own_name(path: Path) -> str:
    """Return a path that names this file alone, although another was loaded by the same path.

    The dynamic linker compares names first: for a library that was built again, it would return
    the code of the former one.
    """
    stat = path.stat()
    files = _files.setdefault(str(path), [])
    if (stat.st_dev, stat.st_ino) not in files:
        files.append((stat.st_dev, stat.st_ino))
    slashes = "/" * (1 + files.index((stat.st_dev, stat.st_ino)))
    return f"{path.parent}{slashes}{path.name}"


def _signature(inputs: manifest.Inputs) -> tuple[Any, ...]:
    return tuple((name, *inputs[name]) for name in sorted(inputs))


def _fetched(value: Any) -> Array:
    """Copy a result of a program, either a tensor or a shape."""
    if isinstance(value, tvm.runtime.ShapeTuple):
        return np.array(list(value), np.int64)
    return np.asarray(value.numpy())


_loaded: dict[str, Library] = {}


def _load(folder: str) -> Library:
    """Load a library once per process, so that the turns of a comparison use a warm one."""
    if folder not in _loaded:
        _loaded[folder] = Library(Path(folder))
    return _loaded[folder]


def _time(program: Program, tensors: Sequence[Any]) -> float:
    start = time.perf_counter()
    program.run(tensors)
    program.device.sync()
    return time.perf_counter() - start
