"""Calls of libraries in a process that sees the stub GPU, and what the stub logged of them."""

import ctypes
import gc
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

from tuner.engines.base import NetworkRun, RunRequest, RunResult
from tuner.engines.cuda.branches import Branches, begin_call
from tuner.engines.cuda.cuda_calls import Cuda
from tuner.engines.cuda.cuda_graphs import CudaGraph
from tuner.engines.relax import network, worker
from tuner.engines.relax.codegen import scratch
from tuner.engines.relax.library.gpu_programs import GpuProgram
from tuner.engines.relax.target import cudart
from tuner.errors import WorkError

Array = np.ndarray[Any, Any]
Log = list[list[str]]
# Calls without a meaning for a test.
_NOISE = {"cudaSetDevice", "cudaStreamIsCapturing", "cudaMemGetInfo", "cuFuncGetParamInfo"}
#: Output of the library of views that is its input b.
COPY = "output_2"
_FAIL, _LOG = "TUNER_TEST_CUDA_FAIL", "TUNER_TEST_CUDA_LOG"


@lru_cache(maxsize=1)
def cuda() -> Cuda:
    """CUDA of the stub."""
    return Cuda(cudart.preload())


def new_stream() -> int:
    """Return a stream as torch makes them."""
    return cuda().made("cudaStreamCreateWithFlags", 1)


@contextmanager
def logged(folder: str) -> Iterator[Log]:
    """Yield what the stub logs: words of each call."""
    path = Path(folder) / "cuda.log"
    path.unlink(missing_ok=True)
    os.environ[_LOG] = str(path)
    lines: Log = []
    try:
        yield lines
    finally:
        del os.environ[_LOG]
        if path.exists():
            lines += [line.split() for line in path.read_text().splitlines()]
            lines[:] = [words for words in lines if words[0] not in _NOISE]


@contextmanager
def failing(spec: str) -> Iterator[None]:
    """Make a call of CUDA fail."""
    os.environ[_FAIL] = spec
    try:
        yield
    finally:
        del os.environ[_FAIL]


def run_kernel(request: RunRequest, environ: dict[str, str]) -> RunResult:
    """Run a kernel with some variables for the stub."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        return worker.run(request)


def describe_hidden() -> None:
    """Describe the GPU, which is hidden."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        worker.describe_target("cuda")


def load(folder: str) -> network.Library:
    """Load a library that no other test has."""
    return network.Library(Path(folder))


def arrays(rows: int = 32, seed: int = 0) -> dict[str, Array]:
    """Draw inputs of the small library."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((rows, 64)).astype("float32") for name in "ab"}


def tensors(rows: int = 32, seed: int = 0) -> dict[str, Any]:
    """Draw inputs on the device."""
    return {name: tvm.runtime.tensor(a, tvm.cuda()) for name, a in arrays(rows, seed).items()}


def program_of(library: network.Library, rows: int = 32) -> GpuProgram:
    """Return the program for some rows."""
    gpu = library.program_for(arrays(rows)).gpu
    assert gpu is not None
    return gpu


def count(log: Log, *names: str) -> int:
    """Count calls."""
    return sum(words[0] in names for words in log)


def kernels(log: Log, how: str) -> list[list[str]]:
    """Return the kernels that ran: name, grid, block, stream, parameters."""
    return [words[2:] for words in log if words[0] == how]


def first_launches(folder: str, temporary: str) -> list[list[str]]:
    """Return the kernels of the first run of a library."""
    library = load(folder)
    with logged(temporary) as log:
        library(arrays())
    return kernels(log, "launch")


def call_with_arrays(folder: str, temporary: str) -> tuple[Log, dict[str, Any]]:
    """Call a library on arrays three times; return the log of the third and its outputs."""
    library = load(folder)
    for seed in range(2):
        library(arrays(seed=seed))
    with logged(temporary) as log:
        outputs = library(arrays(seed=2))
    return log, {name: array.tolist() for name, array in outputs.items()}


def first_run_on_a_stream(folder: str, temporary: str) -> dict[str, Any]:
    """Run a library for the first time, on a stream of the caller; return the log."""
    library, stream, inputs = load(folder), new_stream(), tensors()
    gpu = program_of(library)
    with logged(temporary) as log:
        library.run_on_device(inputs, stream=stream)
    own = gpu._queue.stream
    given = {hex(tensor.data_ptr()) for tensor in inputs.values()}
    return {"log": log, "own": hex(own), "stream": hex(stream), "given": sorted(given)}


def compare_launches(folder: str, temporary: str, rows: int) -> dict[str, Any]:
    """Run a program on two sets of tensors, kernel by kernel and as a graph."""
    library, stream = load(folder), new_stream()
    gpu = program_of(library, rows)
    library.run_on_device(tensors(rows), stream=stream)
    seen: dict[str, Any] = {"logs": [], "each": [], "graph": []}
    for seed in (1, 2, 2, 1):
        inputs = list(tensors(rows, seed).values())
        held = gpu.new_outputs()
        with logged(temporary) as log:
            gpu.launch_each(inputs, held, stream)
        seen["each"].append(kernels(log, "launch"))
        for _ in range(2):
            with logged(temporary) as log:
                gpu.launch(inputs, held, stream)
            seen["logs"].append(log)
        seen["graph"].append(kernels(log, "replay"))
    return seen


def give_outputs(folder: str, temporary: str) -> dict[str, Any]:
    """Drop and keep outputs between calls; return their addresses and the numbers of cudaMalloc."""
    library, stream, inputs = load(folder), new_stream(), tensors()
    for _ in range(2):
        library.run_on_device(inputs, stream=stream)
    addresses, counts, kept = [], [], []
    for keeps in (False, False, True, False):
        with logged(temporary) as log:
            output = library.run_on_device(inputs, stream=stream)["output_0"]
        # A consumer may keep the memory longer than the array.
        consumer = tvm_ffi.from_dlpack(output.__dlpack__(stream=stream))
        addresses.append(consumer.data_ptr())
        counts.append(count(log, "cudaMalloc"))
        if keeps:
            kept.append(consumer)
        del output, consumer
    given = program_of(library).new_outputs()[0]
    with logged(temporary) as log:
        returned = library.run_on_device(inputs, {"output_0": given}, stream)
    written = hex(given.data_ptr()) in kernels(log, "replay")[0]
    return {
        "addresses": addresses,
        "mallocs": counts,
        "same": returned["output_0"] is given,
        "written": written,
    }


class Producer:
    """An array of another library, which notes the stream that it is read on."""

    def __init__(self, tensor: Any, device: tuple[int, int] | None = None) -> None:
        self._tensor = tensor
        self._device = device
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._device or self._tensor.__dlpack_device__()
        return device

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.streams.append(stream)
        return self._tensor.__dlpack__()


def exchange(folder: str, temporary: str) -> dict[str, Any]:
    """Read arrays and give them to a consumer on its own and on other streams."""
    library, stream, other = load(folder), new_stream(), new_stream()
    producers = {name: Producer(tensor) for name, tensor in tensors().items()}

    class Stream:
        cuda_stream = stream

    output = library.run_on_device(producers, stream=Stream())["output_0"]
    waits = []
    for consumer in (stream, other, None, -1):
        with logged(temporary) as log:
            output.__dlpack__(stream=consumer)
        waits.append(count(log, "cudaStreamWaitEvent"))
    return {
        "streams": [each.streams == [stream] for each in producers.values()],
        "waits": waits,
        "device": list(output.__dlpack_device__()),
        "shape": list(output.shape),
        "dtype": output.dtype,
    }


def torch_on_gpu(patch: pytest.MonkeyPatch, stream: int = 0) -> list[int]:
    """Let tensors of torch, which has no CUDA here, claim to be on the GPU.

    Args:
        patch: Holds the changes of torch.
        stream: Its current stream.

    Returns:
        A list that gets the stream of each export.
    """
    import torch

    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    export, streams = torch.Tensor.__dlpack__, []

    def export_on_gpu(tensor: Any, *, stream: int) -> Any:
        streams.append(stream)
        capsule = export(tensor)
        # The type of the device follows the address.
        ctypes.c_int32.from_address(pointer_of(capsule, b"dltensor") + 8).value = 2
        return capsule

    patch.setattr(torch.Tensor, "__dlpack__", export_on_gpu)
    patch.setattr(torch.Tensor, "__dlpack_device__", lambda _: (2, 0))
    patch.setattr(torch.Tensor, "is_cuda", True)
    patch.setattr(torch.Tensor, "get_device", lambda _: 0)
    patch.setattr(torch.cuda, "current_device", lambda: 0)
    patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: stream, raising=False)
    return streams


def call_with_torch(folder: str, temporary: str) -> dict[str, Any]:
    """Call a library on tensors of torch."""
    with pytest.MonkeyPatch.context() as patch:
        stream = new_stream()
        return _call_with_torch(load(folder), temporary, stream, torch_on_gpu(patch, stream))


def _call_with_torch(
    library: network.Library, temporary: str, stream: int, streams: list[int]
) -> dict[str, Any]:
    import torch

    other = new_stream()
    inputs = {name: torch.zeros(32, 64) for name in "ab"}
    outputs = {"output_1": torch.zeros(32, 64)}
    library.run_on_device(inputs, outputs)
    exports = []
    for given in (None, stream, other):
        streams.clear()
        library.run_on_device(inputs, outputs, given)
        exports.append([*streams])
    # The same object may show other memory at each call.
    inputs["a"].set_(torch.ones(32, 64))
    with logged(temporary) as log:
        library.run_on_device(inputs, outputs)
    used = {word for words in kernels(log, "replay") for word in words[4:]}
    seen: dict[str, Any] = {
        "exports": [list(map([stream, other].index, each)) for each in exports],
        "used": all(hex(each.data_ptr()) in used for each in (*inputs.values(), *outputs.values())),
        "launches": count(log, "cudaGraphLaunch"),
        "refusals": [],
    }
    wide = torch.zeros(64, 64)
    for bad in (
        wide.t()[:32],
        wide.flatten()[1 : 1 + 32 * 64].view(32, 64),
        torch.zeros(32, 64, requires_grad=True),
        torch.zeros(32, 64, dtype=torch.int32),
        torch.zeros(32, 63),
    ):
        try:
            library.run_on_device({**inputs, "b": bad}, outputs)
        except (ValueError, BufferError) as error:
            seen["refusals"].append(str(error))
    return seen


def refusals(folder: str) -> list[str]:
    """Return the messages about inputs and outputs that cannot be used."""
    library, good = load(folder), tensors()
    on_device = tvm.runtime.empty((40, 64), "float32", tvm.cuda())
    # A view that starts at the second element.
    moved = Producer(_view(on_device, (32, 64), (64, 1), 4))
    strided = Producer(_view(on_device, (32, 64), (1, 32), 0))
    bad: list[tuple[dict[str, Any], dict[str, Any], Any]] = [
        ({**good, "b": arrays()["b"]}, {}, 0),
        ({**good, "b": Producer(good["b"], (2, 1))}, {}, 0),
        ({**good, "b": [1.0]}, {}, 0),
        ({**good, "b": moved}, {}, 0),
        ({**good, "b": strided}, {}, 0),
        ({"a": good["a"]}, {}, 0),
        (dict.fromkeys("ab", on_device), {}, 0),
        (good, {"nothing": on_device}, 0),
        (good, {"output_0": on_device}, 0),
        (good, {}, "stream"),
    ]
    messages = []
    for inputs, outputs, stream in bad:
        try:
            library.run_on_device(inputs, outputs, stream)
        except ValueError as error:
            messages.append(str(error))
    return messages


def _view(tensor: Any, shape: Sequence[int], strides: Sequence[int], offset: int) -> Any:
    """Return a view of a tensor, which TVM cannot make."""

    class DLTensor(ctypes.Structure):
        _fields_ = (
            ("data", ctypes.c_void_p), ("device", ctypes.c_int * 2), ("ndim", ctypes.c_int),
            ("dtype", ctypes.c_uint32), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
            ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("free", ctypes.c_void_p),
        )  # fmt: skip

    sizes = (ctypes.c_int64 * 2)(*shape)
    steps = (ctypes.c_int64 * 2)(*strides)
    float32 = 2 | 32 << 8 | 1 << 16
    made = DLTensor(
        tensor.data_ptr() + offset, (ctypes.c_int * 2)(2, 0), 2, float32,
        ctypes.addressof(sizes), ctypes.addressof(steps), 0, None, None,
    )  # fmt: skip
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    )
    _held.append((made, sizes, steps))
    return tvm_ffi.from_dlpack(capsule(ctypes.addressof(made), b"dltensor", None))


_held: list[Any] = []


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def fail(folder: str, temporary: str, spec: str) -> dict[str, Any]:
    """Run a library while a call of CUDA fails; return what became of it."""
    library, stream = load(folder), new_stream()
    gpu, inputs = program_of(library), tensors()
    handler, logger = _Records(), logging.getLogger(GpuProgram.__module__)
    logger.addHandler(handler)
    seen: dict[str, Any] = {"errors": [], "launched": []}
    try:
        with failing(spec):
            for _ in range(3):
                held = gpu.new_outputs()
                with logged(temporary) as log:
                    try:
                        gpu.launch(list(inputs.values()), held, stream)
                    except Exception as error:
                        seen["errors"].append(f"{error}")
                replays = [each for each in kernels(log, "replay") if each[3] == hex(stream)]
                seen["launched"].append([count(log, "launch"), len(replays)])
    finally:
        logger.removeHandler(handler)
    capturing = ctypes.c_int()
    cuda().call("cudaStreamIsCapturing", gpu._queue.stream, ctypes.byref(capturing))
    with logged(temporary) as log:
        outputs = library(arrays())
    seen |= {
        "note": gpu.note,
        "warnings": handler.messages,
        "capturing": capturing.value,
        "last error": ctypes.CDLL(cudart.preload()).cudaPeekAtLastError(),
        "is right": bool((outputs[COPY] == arrays()["b"]).all()),
    }
    return seen


def capture(action: str) -> str:
    """Capture something that cannot be captured; return the error, and capture again."""
    calls, stream = cuda(), new_stream()
    event = calls.made("cudaEventCreateWithFlags", 2)
    ends = [tvm.runtime.empty((4,), "uint8", tvm.cuda()) for _ in range(2)]
    copied = (*(tensor.data_ptr() for tensor in ends), 4, 3)
    garbage: list[Any] = [tvm.runtime.empty((4,), "uint8", tvm.cuda())]
    garbage.append(garbage)
    del garbage
    actions: dict[str, Callable[[], object]] = {
        "malloc": lambda: tvm.runtime.empty((1 << 20,), "uint8", tvm.cuda()),
        "synchronize": lambda: calls.call("cudaStreamSynchronize", stream),
        "synchronize device": lambda: calls.call("cudaDeviceSynchronize"),
        "wait": lambda: calls.call("cudaStreamWaitEvent", stream, event, 0),
        "unseen": lambda: calls.function("cudaStreamSynchronize")(stream),
        "copy": lambda: calls.call("cudaMemcpyAsync", *copied, stream),
        "begin": lambda: calls.call("cudaStreamBeginCapture", stream, 1),
        "thread": lambda: _in_thread(actions["malloc"]),
        "garbage": lambda: [[] for _ in range(100_000)],  # it would start a collection
        "nothing": lambda: None,
    }
    try:
        CudaGraph(calls, stream, actions[action], ())
    except Exception as error:
        message = str(error)
    else:
        message = ""
    CudaGraph(calls, stream, actions["nothing"], ())
    return message


def _in_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def use_threads(folder: str, temporary: str) -> dict[str, Any]:
    """Call a library from several threads, on arrays and on streams of their own."""
    library = load(folder)
    problems: list[str] = []
    streams = [new_stream() for _ in range(3)]
    library(arrays())

    def call(seed: int) -> None:
        given = arrays(seed=seed)
        outputs = (library(given)[COPY] for _ in range(20))
        problems.extend("another thread's" for output in outputs if (output != given["b"]).any())

    def call_on_device(stream: int, seed: int) -> None:
        given = tensors(seed=seed)
        for _ in range(20):
            library.run_on_device(given, stream=stream)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(3)]
    threads += [
        threading.Thread(target=call_on_device, args=(stream, seed))
        for seed, stream in enumerate(streams)
    ]
    with logged(temporary) as log:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {"problems": problems, "log": log}


def share_nothing(folder: str, temporary: str) -> dict[str, Any]:
    """Load a library twice, drop one; return the addresses that both use, and the log."""
    first, second = load(folder), load(folder)
    inputs, stream = tensors(), new_stream()
    used: list[set[str]] = []
    for library in (first, second):
        library(arrays())
        with logged(temporary) as log:
            library(arrays())
        used.append(set().union(*(words[4:] for words in kernels(log, "replay"))))
    weights = {
        hex(tensor.data_ptr())
        for library in (first, second)
        for program in library.programs
        for tensor in program.weights
    }
    del first, library
    with logged(temporary) as log:
        # What the other library frees may be given to anybody.
        taken = [tvm.runtime.empty((1 << 14,), "uint8", tvm.cuda()) for _ in range(8)]
        second.run_on_device(inputs, stream=stream)
    del taken
    # Parameters that Triton reserves are null.
    return {"shared": [*(used[0] & used[1] - weights - {"0"})], "log": log}


def fork(folder: str) -> tuple[str, int]:
    """Call a library in a forked process; return its error and the status of the process."""
    library = load(folder)
    library(arrays())
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            library(arrays())
        except WorkError as error:
            os.write(writing, str(error).encode())
        del library
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(pid, 0)
    return os.read(reading, 10_000).decode(), status


def break_context(folder: str, inputs: str) -> list[str]:
    """Return the errors of calls during which CUDA fails, after the library was dropped."""
    library, errors = load(folder), []
    request = NetworkRun(folder, inputs, "", 1)
    library(arrays())
    network.run_network(request)
    with failing("cudaGraphLaunch@1=700"):
        for run in (partial(network.run_network, request), partial(library, arrays())):
            try:
                run()
            except WorkError as error:
                errors.append(str(error))
    del library, run
    gc.collect()
    return errors


def capture_a_call(folder: str, temporary: str) -> dict[str, Any]:
    """Call a library on a stream that its caller captures, before and after its first run."""
    library, stream, calls, inputs = load(folder), new_stream(), cuda(), tensors()
    held = program_of(library).new_outputs()
    named = dict(zip(library.outputs, held, strict=True))
    calls.call("cudaStreamBeginCapture", stream, 1)
    try:
        library.run_on_device(inputs, named, stream)
    except WorkError as error:
        early = str(error)
    calls.call("cudaStreamEndCapture", stream, ctypes.byref(ctypes.c_void_p()))
    for _ in range(2):
        library.run_on_device(inputs, named, stream)
    with logged(temporary) as log:
        graph = CudaGraph(calls, stream, lambda: library.run_on_device(inputs, named, stream), ())
    return {"early": early, "kernels": graph.n_kernels, "log": log}


def take_scratch(library: str, temporary: str) -> dict[str, Any]:
    """Run a kernel that takes memory, in two threads that end, for two owners."""
    module = tvm.runtime.load_module(library)
    scratch.install(library)
    scratch.install(library)
    device = tvm.cuda()
    x = tvm.runtime.empty((256, 300), "float32", device)
    y = tvm.runtime.empty((256,), "float32", device)
    owners = [scratch.Scratch(device) for _ in range(2)]

    def run(owner: scratch.Scratch) -> None:
        with owner.serving():
            module["main"](x, y)

    run(owners[0])
    used: list[list[str]] = []
    with logged(temporary) as log:
        for owner in (owners[0], owners[0], owners[1]):
            thread = threading.Thread(target=run, args=(owner,))
            thread.start()
            thread.join()
        module["main"](x, y)
    own = {hex(x.data_ptr()), hex(y.data_ptr())}
    used = [[w for w in words[4:] if w not in own] for words in kernels(log, "launch")]
    with logged(temporary) as late:
        run(owners[0])
        owners[1].take(1 << 16)
    error = ""
    with failing("cudaMalloc=2"):
        try:
            run(scratch.Scratch(device))
        except MemoryError as raised:
            error = str(raised)
    return {"used": used, "log": late, "error": error}


def take_scratch_beside_each_other(library: str, temporary: str) -> list[list[str]]:
    """Return the scratch memory of three calls, of which the third needs the others, twice.

    The second time, a stream captures them.
    """
    module = tvm.runtime.load_module(library)
    scratch.install(library)
    device, stream = tvm.cuda(), new_stream()
    x = tvm.runtime.empty((256, 300), "float32", device)
    y = tvm.runtime.empty((256,), "float32", device)
    owner = scratch.Scratch(device)
    order = Branches(cuda(), [(), (), (0, 1)])

    def run() -> None:
        with owner.serving(), tvm_ffi.use_raw_stream(device, stream):
            for number in range(3):
                begin_call(number)
                module["main"](x, y)

    with logged(temporary) as log:
        with order.serving(None):
            run()
        CudaGraph(cuda(), stream, run, [], order).replay([], stream)
    own = {hex(x.data_ptr()), hex(y.data_ptr())}
    return [
        [word for words in kernels(log, how) for word in words[4:] if word not in own]
        for how in ("launch", "replay")
    ]


def time_runs(folder: str, temporary: str, inputs: str) -> dict[str, Any]:
    """Time a library as a profile and as a benchmark do."""
    profiled = network.profile_network(NetworkRun(folder, inputs, "", 2))
    outputs = str(Path(temporary) / "outputs.npz")
    with logged(temporary) as log:
        secs = network.run_network(NetworkRun(folder, inputs, outputs, 4))
    named: Mapping[str, Array] = dict(np.load(outputs))
    return {
        "n": len(secs),
        "calls": [[call.call for call in run.calls] for run in profiled],
        "log": log,
        "note": network.launch_note(folder, inputs),
        "outputs": {name: list(array.shape) for name, array in named.items()},
    }
