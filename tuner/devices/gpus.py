"""The NVIDIA GPUs of this machine: what they are, what they can, and what they are doing.

NVML tells of all of them, whatever CUDA_VISIBLE_DEVICES says, and of their clocks; the CUDA
driver tells the limits of those that this process sees. Neither makes a context, and a machine
without a driver has no GPUs: nothing here raises.
"""

import os
from collections.abc import Iterator, Mapping
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
# Those that make a GPU slower than it is asked to be; the others are settings, or rest.
_THROTTLING = {
    "software power cap",
    "hardware slowdown",
    "software thermal slowdown",
    "hardware thermal slowdown",
    "hardware power brake slowdown",
}
_LIMITS = {
    "shared_bytes": "MAX_SHARED_MEMORY_PER_BLOCK",
    "shared_optin_bytes": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "n_registers": "MAX_REGISTERS_PER_BLOCK",
    "warp_size": "WARP_SIZE",
    "n_threads": "MAX_THREADS_PER_BLOCK",
    "l2_bytes": "L2_CACHE_SIZE",
    "n_multiprocessors": "MULTIPROCESSOR_COUNT",
}


@dataclass(frozen=True)
class GpuLimits:
    """What a block may ask of a GPU, and what all of them share.

    Attributes:
        shared_bytes: Shared memory of a block.
        shared_optin_bytes: Shared memory of a block that asks for more.
        n_registers: Registers of a block.
        warp_size: Threads of a warp.
        n_threads: Threads of a block, at most.
        l2_bytes: Size of the second-level cache.
        n_multiprocessors: Streaming multiprocessors.
    """

    shared_bytes: int
    shared_optin_bytes: int
    n_registers: int
    warp_size: int
    n_threads: int
    l2_bytes: int
    n_multiprocessors: int


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVML tells of it.

    Attributes:
        index: Its place among all of this machine.
        uuid: ``GPU-...``; CUDA_VISIBLE_DEVICES takes it.
        name: As its maker named it.
        capability: Compute capability, such as ``"9.0"``.
        driver: Version of the driver.
        cuda: Version of CUDA that the driver knows.
        max_sm_mhz: Highest clock of its multiprocessors, MHz; None if it does not tell.
        max_memory_mhz: Highest clock of its memory, MHz; None if it does not tell.
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
        """What its code is compiled for, such as ``"sm_90"``."""
        return "sm_" + self.capability.replace(".", "")


def list_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs of this machine in NVML's order; none without a driver."""
    with _nvml() as nvml:
        if nvml is None:
            return ()
        n_gpus = _told(nvml, nvml.nvmlDeviceGetCount) or 0
        found = (_told(nvml, _describe, index) for index in range(n_gpus))
        return tuple(gpu for gpu in found if gpu is not None)


def usable_gpus() -> tuple[Gpu, ...]:
    """Return those that CUDA_VISIBLE_DEVICES leaves to this process, in its order.

    It names them by UUID, or the beginning of one, or by number. Numbers are taken to be NVML's:
    CUDA counts as it does where all are alike, or CUDA_DEVICE_ORDER is PCI_BUS_ID. As with CUDA,
    an entry that names none hides those after it too.
    """
    found, named = list_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return found
    chosen: list[Gpu] = []
    for entry in named.split(","):
        gpu = _named(found, entry.strip())
        if gpu is None or gpu in chosen:
            break
        chosen.append(gpu)
    return tuple(chosen)


def _named(found: tuple[Gpu, ...], entry: str) -> Gpu | None:
    if entry.isdecimal():
        matching = [gpu for gpu in found if gpu.index == int(entry)]
    else:
        matching = [gpu for gpu in found if entry and gpu.uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else None


def visible_gpu() -> tuple[Gpu, GpuLimits] | None:
    """Return the first GPU that this process sees, as CUDA counts them, and its limits."""
    found = _first_device()
    if found is None:
        return None
    uuid, limits = found
    gpu = next((each for each in list_gpus() if each.uuid == uuid), None)
    return (gpu, limits) if gpu else None


def read_conditions(uuid: str) -> dict[str, Any]:
    """Return clocks (MHz), temperature (degrees Celsius), power (W) and why clocks are held.

    ``reasons`` are all that hold the clocks, ``throttled`` those of them by which the GPU is
    slower than it was asked to be. What it does not tell is left out.
    """
    with _nvml() as nvml:
        handle = nvml and _told(nvml, nvml.nvmlDeviceGetHandleByUUID, uuid)
        if not handle:
            return {}
        watts = _told(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
        mask = _told(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        read = {
            "sm_mhz": _told(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "memory_mhz": _told(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            "celsius": _told(
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
    """Name the bits of NVML's mask of reasons that hold clocks down; unknown ones by number."""
    named = [name for bit, name in _REASONS.items() if mask & bit]
    unknown = [f"reason {1 << place:#x}" for place in range(64) if mask >> place & 1]
    return (*named, *(each for each in unknown if int(each.split()[1], 16) not in _REASONS))


def throttling(reasons: tuple[str, ...]) -> tuple[str, ...]:
    """Return the reasons by which a GPU is slower than it was asked to be."""
    return tuple(reason for reason in reasons if reason in _THROTTLING)


def merge_conditions(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Join readings before and after samples: the later ones, and the reasons of both."""
    merged = {**before, **after}
    for name in ("reasons", "throttled"):
        if name in merged:
            merged[name] = list(dict.fromkeys([*before.get(name, ()), *after.get(name, ())]))
    return merged


@contextmanager
def _nvml() -> Iterator[Any]:
    """NVML, or None where its package, its library or the driver is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # whatever is wrong with a driver, there is then no GPU to use
        yield None
        return
    try:
        yield pynvml
    finally:
        _told(pynvml, pynvml.nvmlShutdown)


def _told(nvml: Any, ask: Any, *args: Any) -> Any:
    """Ask NVML; None for what a device does not tell."""
    try:
        return ask(nvml, *args) if ask is _describe else ask(*args)
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
        max_sm_mhz=_told(nvml, nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
        max_memory_mhz=_told(nvml, nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_MEM),
    )


def _first_device() -> tuple[str, GpuLimits] | None:
    """UUID and limits of the device that the CUDA driver calls the first."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    try:
        from cuda.bindings import driver

        _checked(driver.cuInit(0))
        device = _checked(driver.cuDeviceGet(0))
        uuid = bytes(_checked(driver.cuDeviceGetUuid(device)).bytes).hex()
        attributes = {name: _attribute(driver, label) for name, label in _LIMITS.items()}
        limits = {
            name: int(_checked(driver.cuDeviceGetAttribute(attribute, device)))
            for name, attribute in attributes.items()
        }
    except (ImportError, RuntimeError):
        return None
    dashed = "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))
    return f"GPU-{dashed}", GpuLimits(**limits)


def _attribute(driver: Any, label: str) -> Any:
    return getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{label}")


def _checked(answer: tuple[Any, ...]) -> Any:
    """Return what a call of the CUDA driver answers.

    Raises:
        RuntimeError: If it failed.
    """
    status, *values = answer
    if int(status):
        raise RuntimeError(f"the CUDA driver says {status}")
    return values[0] if values else None
