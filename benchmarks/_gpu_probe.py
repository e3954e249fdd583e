"""Process that uses the GPU once through the driver; exit status 0 if that works."""

import ctypes
import sys

_N_BYTES = 1 << 20


def main() -> None:
    """Open the first GPU, write a megabyte of its memory, and synchronise."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        sys.exit(f"the NVIDIA driver's library is missing: {error}")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    memory, size = ctypes.c_uint64(), ctypes.c_size_t(_N_BYTES)
    _call(driver, "cuInit", ctypes.c_uint(0))
    _call(driver, "cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
    _call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    _call(driver, "cuCtxSetCurrent", context)
    _call(driver, "cuMemAlloc_v2", ctypes.byref(memory), size)
    _call(driver, "cuMemsetD8_v2", memory, ctypes.c_ubyte(0), size)
    _call(driver, "cuCtxSynchronize")
    _call(driver, "cuMemFree_v2", memory)


def _call(driver: ctypes.CDLL, function: str, *arguments: object) -> None:
    status = getattr(driver, function)(*arguments)
    if status != 0:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(ctypes.c_int(status), ctypes.byref(name))
        sys.exit(f"{function}: {(name.value or b'unknown error').decode()}")


if __name__ == "__main__":
    main()
