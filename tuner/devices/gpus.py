"""NVIDIA GPUs of this machine: their identity, limits and conditions.

NVML describes all GPUs, whatever CUDA_VISIBLE_DEVICES is, and their clocks; the CUDA driver
describes the limits of those that this process sees. Neither creates a context, and a machine
without a driver has no GPUs: nothing here raises.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h, "nvmlClocksEventReasons").
_REASONS = {
    0x001: "idle",
    0x002: "applications clocks setting",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake slowdown",
    0x100: "display clock setting",
}
# Reasons for which a GPU is slower than requested; the others are settings, or idleness.
_THROTTLING = {
    "software power cap",
    "hardware slowdown",
    "software thermal slowdown",
    "hardware thermal slowdown",
    "hardware power brake slowdown",
}
#: Properties of a GPU that its measurements depend on, in the fingerprint of the device.
IDENTITY: Mapping[str, type] = {
    "name": str,
    "capability": str,
    "n_multiprocessors": int,
    "driver": str,
    "cuda": str,
    "max_sm_mhz": int,
    "max_memory_mhz": int,
}
_LIMITS = {
    "shared_bytes": "MAX_SHARED_MEMORY_PER_BLOCK",
    "shared_optin_bytes": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "n_registers": "MAX_REGISTERS_PER_BLOCK",
    "warp_size": "WARP_SIZE",
    "n_threads": "MAX_THREADS_PER_BLOCK",
    "l2_bytes": "L2_CACHE_SIZE",
    "n_multiprocessors": "MULTIPROCESSOR_COUNT",
    "memory_bits": "GLOBAL_MEMORY_BUS_WIDTH",
}


@dataclass(frozen=True)
class GpuLimits:
    """Resources of one block of a GPU, and resources that all blocks share.

    Attributes:
        shared_bytes: Shared memory of a block.
        shared_optin_bytes: Shared memory of a block that opts in to more.
        n_registers: Registers of a block.
        warp_size: Threads of a warp.
        n_threads: Threads of a block, at most.
        l2_bytes: Size of the second-level cache.
        n_multiprocessors: Streaming multiprocessors.
        memory_bits: Width of the memory bus.
    """

    shared_bytes: int
    shared_optin_bytes: int
    n_registers: int
    warp_size: int
    n_threads: int
    l2_bytes: int
    n_multiprocessors: int
    memory_bits: int


@dataclass(frozen=True)
class Gpu:
    """GPU as NVML describes it.

    Attributes:
        index: Number among the GPUs of this machine.
        uuid: ``GPU-...``; CUDA_VISIBLE_DEVICES takes it.
        name: Name of the product.
        capability: Compute capability, such as ``"9.0"``.
        driver: Version of the driver.
        cuda: Latest version of CUDA that the driver supports.
        max_sm_mhz: Highest clock of its multiprocessors, MHz; None if unknown.
        max_memory_mhz: Highest clock of its memory, MHz; None if unknown.
    """

    index: int
    uuid: str
    name: str
    capability: str
    driver: str
    cuda: str
    max_sm_mhz: int | None
    max_memory_mhz: int | None

    @property
    def arch(self) -> str:
        """Architecture that code is compiled for, such as ``"sm_90"``."""
        return "sm_" + self.capability.replace(".", "")


def list_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs of this machine in NVML's order; none without a driver."""
    with _nvml() as nvml:
        if nvml is None:
            return ()
        n_gpus = _query(nvml, nvml.nvmlDeviceGetCount) or 0
        gpus = (_query(nvml, _describe, nvml, index) for index in range(n_gpus))
        return tuple(gpu for gpu in gpus if gpu is not None)


def usable_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves to this process, in its order.

    Its entries are UUIDs, beginnings of UUIDs, or numbers. Numbers are taken as NVML's, which
    CUDA uses too if all GPUs are alike or CUDA_DEVICE_ORDER is PCI_BUS_ID. As in CUDA, an entry
    that matches no GPU hides those after it too.
    """
    gpus, visible = list_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    chosen: list[Gpu] = []
    for entry in visible.split(","):
        gpu = _match(gpus, entry.strip())
        if gpu is None or gpu in chosen:
            break
        chosen.append(gpu)
    return tuple(chosen)


def _match(gpus: tuple[Gpu, ...], entry: str) -> Gpu | None:
    if entry.isdecimal():
        matching = [gpu for gpu in gpus if gpu.index == int(entry)]
    else:
        matching = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else None


def visible_gpu() -> tuple[Gpu, GpuLimits] | None:
    """Return the first GPU that this process sees, as CUDA counts them, and its limits."""
    first = _first_device()
    if first is None:
        return None
    uuid, limits = first
    gpu = next((gpu for gpu in list_gpus() if gpu.uuid == uuid), None)
    return (gpu, limits) if gpu else None


def read_conditions(uuid: str) -> dict[str, Any]:
    """Return clocks (MHz), temperature (degrees Celsius), power (W) and reasons of low clocks.

    ``reasons`` hold the clocks down; ``throttled`` are those of them for which the GPU is slower
    than requested. Values that the GPU does not report are left out.
    """
    with _nvml() as nvml:
        handle = nvml and _query(nvml, nvml.nvmlDeviceGetHandleByUUID, uuid)
        if not handle:
            return {}
        watts = _query(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
        mask = _query(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        read = {
            "sm_mhz": _query(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "memory_mhz": _query(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            "celsius": _query(
                nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU
            ),
            "watts": None if watts is None else watts / 1e3,
        }
    conditions = {name: value for name, value in read.items() if value is not None}
    if mask is not None:
        reasons = name_reasons(mask)
        conditions |= {"reasons": list(reasons), "throttled": list(throttling(reasons))}
    return conditions


def name_reasons(mask: int) -> tuple[str, ...]:
    """Return the names of the bits of NVML's mask of clock reasons; unknown ones as numbers."""
    named = [name for bit, name in _REASONS.items() if mask & bit]
    bits = [1 << index for index in range(64) if mask >> index & 1]
    return (*named, *(f"reason {bit:#x}" for bit in bits if bit not in _REASONS))


def throttling(reasons: tuple[str, ...]) -> tuple[str, ...]:
    """Return the reasons for which a GPU is slower than requested."""
    return tuple(reason for reason in reasons if reason in _THROTTLING)


def merge_conditions(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Merge readings before and after samples: the later values, and the reasons of both."""
    merged = {**before, **after}
    for name in ("reasons", "throttled"):
        if name in merged:
            merged[name] = list(dict.fromkeys([*before.get(name, ()), *after.get(name, ())]))
    return merged


@contextmanager
def _nvml() -> Iterator[Any]:
    """Yield NVML, or None where its package, its library or the driver is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # a broken driver means that there is no GPU to use
        yield None
        return
    try:
        yield pynvml
    finally:
        _query(pynvml, pynvml.nvmlShutdown)


def _query(nvml: Any, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of NVML; return None for values that a device does not report."""
    try:
        return function(*args)
    except nvml.NVMLError:
        return None


def _describe(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    cuda = int(nvml.nvmlSystemGetCudaDriverVersion())
    return Gpu(
        index=index,
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        name=str(nvml.nvmlDeviceGetName(handle)),
        capability=f"{major}.{minor}",
        driver=str(nvml.nvmlSystemGetDriverVersion()),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
        max_sm_mhz=_query(nvml, nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
        max_memory_mhz=_query(nvml, nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_MEM),
    )


def _first_device() -> tuple[str, GpuLimits] | None:
    """Return the UUID and the limits of the CUDA driver's first device."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    try:
        from cuda.bindings import driver

        _checked(driver.cuInit(0))
        device = _checked(driver.cuDeviceGet(0))
        uuid = bytes(_checked(driver.cuDeviceGetUuid(device)).bytes).hex()
        attributes = {
            name: getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{label}")
            for name, label in _LIMITS.items()
        }
        limits = {
            name: int(_checked(driver.cuDeviceGetAttribute(attribute, device)))
            for name, attribute in attributes.items()
        }
    except (ImportError, RuntimeError):
        return None
    dashed = "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))
    return f"GPU-{dashed}", GpuLimits(**limits)


def _checked(answer: tuple[Any, ...]) -> Any:
    """Return the value of a call of the CUDA driver.

    Raises:
        RuntimeError: If the call failed.
    """
    status, *values = answer
    if int(status):
        raise RuntimeError(f"the CUDA driver failed: {status}")
    return values[0] if values else None
