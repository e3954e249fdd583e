"""The CUDA driver by ctypes: one device, its memory, kernels and graphs.

Names and constants are those of the CUDA Driver API.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import numpy as np

_LIBRARY = "libcuda.so.1"
_MULTIPROCESSORS, _L2_BYTES, _MAJOR, _MINOR = 16, 38, 75, 76
_MAX_DYNAMIC_SHARED_BYTES = 8
# Shared memory that a block has without request.
_SHARED_BYTES = 48 << 10
_THREAD_LOCAL = 1
_SET_DEPENDENCIES = 1
# Programmatic dependent launch: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION.
_OVERLAPS = 6


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``."""

    _fields_ = (("id", c_int), ("pad", c_int), ("value", c_uint * 16))


class _Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("sizes", c_uint * 7),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("n_attributes", c_uint),
    )


class CudaError(Exception):
    """A call of the driver failed."""


class Driver:
    """The first GPU that this process sees, with a context and a stream.

    Raises:
        CudaError: If there is no driver or no GPU.
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise CudaError(f"this machine has no NVIDIA driver: {error}") from error
        self.call("cuInit", 0)
        self._device = c_int()
        self.call("cuDeviceGet", byref(self._device), 0)
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), self._device)
        self.call("cuCtxSetCurrent", context)
        self.stream = self.made("cuStreamCreate", 1)
        self._start, self._end = self.made("cuEventCreate", 0), self.made("cuEventCreate", 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver.

        Raises:
            CudaError: If it fails; the text has its name and its error.
        """
        function = getattr(self._library, name, None)
        if function is None:
            raise CudaError(f"{name}: the driver is too old")
        status = function(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(status, byref(text))
            raise CudaError(f"{name}: {(text.value or b'error').decode()} ({status})")

    def made(self, name: str, *arguments: Any) -> c_void_p:
        """Return the handle that a function makes."""
        handle = c_void_p()
        self.call(name, byref(handle), *arguments)
        return handle

    def describe(self) -> dict[str, Any]:
        """Return the identity of the GPU, as far as the driver knows it."""
        name, uuid, version = ctypes.create_string_buffer(256), (ctypes.c_ubyte * 16)(), c_int()
        self.call("cuDeviceGetName", name, 256, self._device)
        self.call("cuDeviceGetUuid", uuid, self._device)
        self.call("cuDriverGetVersion", byref(version))
        digits = bytes(uuid).hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        return {
            "name": name.value.decode(),
            "uuid": f"GPU-{'-'.join(parts)}",
            "capability": f"{self._attribute(_MAJOR)}.{self._attribute(_MINOR)}",
            "n_multiprocessors": self._attribute(_MULTIPROCESSORS),
            "cuda": f"{version.value // 1000}.{version.value % 1000 // 10}",
        }

    @property
    def l2_bytes(self) -> int:
        """Size of the second-level cache."""
        return self._attribute(_L2_BYTES)

    def allocate(self, n_bytes: int) -> int:
        """Return the address of new memory."""
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(max(n_bytes, 16)))
        return pointer.value

    def free(self, address: int) -> None:
        """Free memory."""
        self.call("cuMemFree_v2", c_uint64(address))

    def upload(self, address: int, array: Any) -> None:
        """Copy an array to the device, in the order of the stream."""
        array = np.ascontiguousarray(array)
        source = c_void_p(array.ctypes.data)
        self.call(
            "cuMemcpyHtoDAsync_v2", c_uint64(address), source, c_size_t(array.nbytes), self.stream
        )
        self.wait()

    def download(self, address: int, shape: Sequence[int], dtype: str) -> Any:
        """Return an array of the device."""
        array = np.empty(tuple(shape), dtype)
        into = c_void_p(array.ctypes.data)
        self.call(
            "cuMemcpyDtoHAsync_v2", into, c_uint64(address), c_size_t(array.nbytes), self.stream
        )
        self.wait()
        return array

    def fill(self, address: int, n_bytes: int, byte: int = 255) -> None:
        """Fill memory with a byte; 255 is NaN in floating-point types."""
        value = ctypes.c_ubyte(byte)
        self.call("cuMemsetD8Async", c_uint64(address), value, c_size_t(n_bytes), self.stream)

    def wait(self) -> None:
        """Wait for the stream."""
        self.call("cuStreamSynchronize", self.stream)

    def captured(self) -> list[int]:
        """Return the nodes of the graph that the next kernel would wait for."""
        status, number, graph = c_int(), c_uint64(), c_void_p()
        nodes, edges, count = ctypes.POINTER(c_void_p)(), c_void_p(), c_size_t()
        results = (status, number, graph, nodes, edges, count)
        self.call("cuStreamGetCaptureInfo_v3", self.stream, *map(byref, results))
        return [nodes[index] or 0 for index in range(count.value)]

    def wait_for(self, nodes: Sequence[int]) -> None:
        """Have the next kernel of a capture wait for these nodes alone."""
        array = (c_void_p * len(nodes))(*nodes)
        n_nodes = c_size_t(len(nodes))
        name = "cuStreamUpdateCaptureDependencies_v2"
        self.call(name, self.stream, array, None, n_nodes, _SET_DEPENDENCIES)

    def end_capture(self) -> None:
        """End a capture that failed; its error says more than that of its end."""
        graph = c_void_p()
        self._library.cuStreamEndCapture(self.stream, byref(graph))

    def _attribute(self, number: int) -> int:
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), number, self._device)
        return value.value

    def elapsed_secs(self, run: Callable[[], None]) -> float:
        """Return the time of what a function launches, seconds."""
        self.call("cuEventRecord", self._start, self.stream)
        run()
        self.call("cuEventRecord", self._end, self.stream)
        self.wait()
        milliseconds = c_float()
        self.call("cuEventElapsedTime", byref(milliseconds), self._start, self._end)
        return milliseconds.value / 1e3


class Graph:
    """The launches of a function as a graph.

    Args:
        driver: The device.
        launch: Launches kernels in the stream of the device, which have been loaded.
    """

    def __init__(self, driver: Driver, launch: Callable[[], None]) -> None:
        self._driver = driver
        graph = c_void_p()
        driver.call("cuStreamBeginCapture_v2", driver.stream, _THREAD_LOCAL)
        try:
            launch()
        except CudaError:
            driver.end_capture()
            raise
        driver.call("cuStreamEndCapture", driver.stream, byref(graph))
        self._executable = driver.made("cuGraphInstantiateWithFlags", graph, c_uint64(0))
        driver.call("cuGraphDestroy", graph)

    def run(self, n_runs: int = 1) -> float:
        """Launch the graph some times and wait; return the seconds of one launch."""

        def launch() -> None:
            for _ in range(n_runs):
                self._driver.call("cuGraphLaunch", self._executable, self._driver.stream)

        return self._driver.elapsed_secs(launch) / n_runs

    def close(self) -> None:
        """Free the graph."""
        self._driver.call("cuGraphExecDestroy", self._executable)


class Launches:
    """The kernels of a candidate, loaded.

    Args:
        driver: The device.
        candidate: Candidate of the index of a pack.
        code: Binaries of the workload, in which each kernel has its place.
    """

    def __init__(self, driver: Driver, candidate: Mapping[str, Any], code: bytes) -> None:
        self._driver = driver
        #: Size of the memory that the kernels share.
        self.n_bytes = int(candidate["workspace_bytes"])
        self._modules: list[c_void_p] = []
        self._kernels: list[tuple[c_void_p, _Config]] = []
        self._pointers: list[tuple[list[int], int]] = []
        try:
            for kernel in candidate["kernels"]:
                self._load(kernel, code[kernel["at"] : kernel["at"] + kernel["size"]])
        except CudaError:
            self.close()
            raise

    def _load(self, kernel: dict[str, Any], code: bytes) -> None:
        module = self._driver.made("cuModuleLoadData", code)
        self._modules.append(module)
        function = self._driver.made("cuModuleGetFunction", module, kernel["name"].encode())
        if kernel["shared_bytes"] > _SHARED_BYTES:
            self._driver.call(
                "cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED_BYTES, kernel["shared_bytes"]
            )
        sizes = (*kernel["grid"], *kernel["block"], kernel["shared_bytes"])
        attribute = _Attribute(_OVERLAPS, 0)
        attribute.value[0] = 1
        config = _Config(
            (c_uint * 7)(*sizes), self._driver.stream, ctypes.pointer(attribute), kernel["overlaps"]
        )
        self._kernels.append((function, config))
        self._pointers.append((kernel["pointers"], kernel["n_parameters"]))

    @property
    def n_kernels(self) -> int:
        """Number of kernels."""
        return len(self._kernels)

    def launch(self, addresses: Sequence[int], workspace: int) -> None:
        """Launch all kernels in the stream.

        Args:
            addresses: Address of each argument of the workload.
            workspace: Address of the memory that the kernels share.
        """
        self._launch(self._parameters(addresses, workspace))

    def _parameters(self, addresses: Sequence[int], workspace: int) -> list[Any]:
        """Return the parameters of each kernel, as the driver takes them."""
        parameters = []
        for indices, n_parameters in self._pointers:
            # A negative index is a place in the workspace, see WORKSPACE of tuner.engines.packed.
            values = [addresses[at] if at >= 0 else workspace - at - 1 for at in indices]
            values += [0] * (n_parameters - len(values))
            numbers = [c_uint64(value) for value in values]
            pointers = (c_void_p * len(values))(*map(ctypes.addressof, numbers))
            parameters.append((pointers, numbers))
        return parameters

    def _launch(self, parameters: list[Any]) -> None:
        for (function, config), (pointers, _) in zip(self._kernels, parameters, strict=True):
            self._driver.call("cuLaunchKernelEx", byref(config), function, pointers, None)

    def sample(
        self, sets: Sequence[Sequence[int]], workspace: int, n_launches: int, n_samples: int
    ) -> list[float]:
        """Time a graph of many launches, after a launch that does not count.

        Args:
            sets: Addresses of the arguments; launches take turns.
            workspace: Address of the memory that the kernels share.
            n_launches: Launches of all kernels in the graph.

        Returns:
            Seconds per launch of the kernels, for each launch of the graph.
        """
        parameters = [self._parameters(addresses, workspace) for addresses in sets]

        def launch() -> None:
            for number in range(n_launches):
                self._launch(parameters[number % len(parameters)])

        graph = Graph(self._driver, launch)
        graph.run()
        samples = [graph.run() / n_launches for _ in range(n_samples)]
        graph.close()
        return samples

    def close(self) -> None:
        """Unload the kernels."""
        for module in self._modules:
            self._driver.call("cuModuleUnload", module)
