"""Calls of the CUDA runtime and driver by ctypes; a failed call raises."""

import ctypes
from ctypes import POINTER, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

from tuner.errors import WorkError

_DRIVER = "libcuda.so.1"
#: Kinds of copies of ``cudaMemcpyAsync``.
TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3
#: Errors after which all calls of a process fail (driver_types.h of CUDA 13).
ENDING = frozenset({226, 700, 702, 710, *range(714, 720), 721, 810, 911})
_OUT = POINTER(c_void_p)
# A ctypes function without these would pass an address as an int of 32 bits.
_PARAMETERS: dict[str, tuple[Any, ...]] = {
    "cudaEventCreateWithFlags": (_OUT, c_uint),
    "cudaEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cudaEventDestroy": (c_void_p,),
    "cudaEventRecord": (c_void_p, c_void_p),
    "cudaEventSynchronize": (c_void_p,),
    "cudaDeviceSynchronize": (),
    "cudaFreeHost": (c_void_p,),
    "cudaGraphDestroy": (c_void_p,),
    "cudaGraphExecDestroy": (c_void_p,),
    "cudaGraphGetNodes": (c_void_p, _OUT, POINTER(c_size_t)),
    "cudaGraphInstantiate": (_OUT, c_void_p, c_ulonglong),
    "cudaGraphLaunch": (c_void_p, c_void_p),
    "cudaGraphNodeGetType": (c_void_p, POINTER(c_int)),
    "cudaLaunchHostFunc": (c_void_p, c_void_p, c_void_p),
    "cudaMallocHost": (_OUT, c_size_t),
    "cudaMemcpyAsync": (c_void_p, c_void_p, c_size_t, c_int, c_void_p),
    "cudaSetDevice": (c_int,),
    "cudaStreamBeginCapture": (c_void_p, c_int),
    "cudaStreamCreateWithFlags": (_OUT, c_uint),
    "cudaStreamDestroy": (c_void_p,),
    "cudaStreamEndCapture": (c_void_p, _OUT),
    "cudaStreamIsCapturing": (c_void_p, POINTER(c_int)),
    "cudaStreamSynchronize": (c_void_p,),
    "cudaStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuFuncGetParamInfo": (c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_size_t)),
    "cuStreamGetCaptureInfo_v3": (c_void_p, *[c_void_p] * 6),
    "cuStreamUpdateCaptureDependencies_v2": (c_void_p, c_void_p, c_void_p, c_size_t, c_uint),
    "cuGraphExecKernelNodeSetParams_v2": (c_void_p, c_void_p, c_void_p),
    "cuGraphKernelNodeGetParams_v2": (c_void_p, c_void_p),
}


class CudaError(WorkError):
    """A call of CUDA failed; ``status`` is what it returned."""

    def __init__(self, function: str, status: int, name: str) -> None:
        hint = "; CUDA no longer works in this process: start another one"
        reason = f"{function} of CUDA fails with status {status} ({name})"
        super().__init__(f"{reason}{hint if status in ENDING else ''}")
        self.status = status


class Cuda:
    """The CUDA runtime and driver of this process.

    Args:
        runtime: Path or name of the runtime that the process uses.
    """

    def __init__(self, runtime: str) -> None:
        self._runtime = ctypes.CDLL(runtime)
        self._driver = ctypes.CDLL(_DRIVER)
        self._runtime.cudaGetErrorName.restype = ctypes.c_char_p
        self._functions: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        """Return a function, which returns a status.

        Raises:
            WorkError: If this version of CUDA does not have it.
        """
        if name not in self._functions:
            library = self._runtime if name.startswith("cuda") else self._driver
            try:
                function = getattr(library, name)
            except AttributeError as error:
                raise WorkError(f"this version of CUDA has no {name}: update the driver") from error
            function.argtypes = _PARAMETERS[name]
            self._functions[name] = function
        return self._functions[name]

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            CudaError: If it fails.
        """
        status = (self._functions.get(name) or self.function(name))(*arguments)
        if status:
            # Otherwise another library would find the error at its next check.
            self._runtime.cudaGetLastError()
            known = self._runtime.cudaGetErrorName(status) or b"unknown"
            raise CudaError(name, status, known.decode())

    def made(self, name: str, *arguments: Any) -> int:
        """Call a function that creates an object; return its handle."""
        handle = c_void_p()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle.value or 0
