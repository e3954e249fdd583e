"""NVML by ctypes: what the driver does not tell of a GPU, and its clocks."""

import ctypes
from ctypes import byref, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_SM, _MEMORY = 1, 2


class Nvml:
    """NVML, as far as it is there: values that it does not report are left out."""

    def __init__(self, uuid: str) -> None:
        self._device = c_void_p()
        self._library: Any = None
        try:
            library = ctypes.CDLL(_LIBRARY)
        except OSError:
            return
        if library.nvmlInitWithFlags(0):
            return
        if not library.nvmlDeviceGetHandleByUUID(uuid.encode(), byref(self._device)):
            self._library = library

    def identity(self) -> dict[str, Any]:
        """Return the name, the driver's version and the highest clocks of the GPU."""
        name, driver = ctypes.create_string_buffer(256), ctypes.create_string_buffer(256)
        cuda = c_int()
        texts: dict[str, Any] = {}
        if self._library is None:
            return texts
        if not self._library.nvmlDeviceGetName(self._device, name, 256):
            texts["name"] = name.value.decode()
        if not self._library.nvmlSystemGetDriverVersion(driver, 256):
            texts["driver"] = driver.value.decode()
        if not self._library.nvmlSystemGetCudaDriverVersion_v2(byref(cuda)):
            texts["cuda"] = f"{cuda.value // 1000}.{cuda.value % 1000 // 10}"
        return {
            **texts,
            **self._clock("max_sm_mhz", "nvmlDeviceGetMaxClockInfo", _SM),
            **self._clock("max_memory_mhz", "nvmlDeviceGetMaxClockInfo", _MEMORY),
        }

    def conditions(self) -> dict[str, int]:
        """Return the clock of the multiprocessors, MHz, and the mask of reasons that limit it."""
        if self._library is None:
            return {}
        mask = c_ulonglong()
        read = self._clock("sm_mhz", "nvmlDeviceGetClockInfo", _SM)
        function = getattr(self._library, "nvmlDeviceGetCurrentClocksEventReasons", None)
        if function is not None and not function(self._device, byref(mask)):
            read["reasons"] = mask.value
        return read

    def _clock(self, name: str, function: str, kind: int) -> dict[str, int]:
        value = c_uint()
        failed = getattr(self._library, function)(self._device, kind, byref(value))
        return {} if failed else {name: value.value}
