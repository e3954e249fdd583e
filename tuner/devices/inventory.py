"""Devices of this machine that can time kernels."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.devices import gpus
from tuner.devices.locks import device_lock, gpu_lock
from tuner.engines.base import TargetInfo
from tuner.errors import TargetError
from tuner.settings import Settings
from tuner.workers.factory import runner_pool
from tuner.workers.pool import Pool

CPU = "cpu"
CPU_KIND = "llvm"
_DESCRIBE_TIMEOUT_SECS = 300.0
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class LocalDevice:
    """Device of this machine, which one process can use alone.

    Attributes:
        name: Name, unique on this machine.
        kind: Kind, as in :attr:`tuner.engines.base.TargetInfo.kind`.
        spec: Target that a process resolves to this device.
        environ: Environment variables that show this device alone to a process.
    """

    name: str
    kind: str
    spec: str
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def uuid(self) -> str | None:
        """UUID of a GPU; None for the CPU."""
        return self.environ.get(_VISIBLE)

    def hold(self, data_dir: Path) -> AbstractContextManager[None]:
        """Hold the device, so that no other process of this machine measures on it.

        Raises:
            DeviceBusy: On entering, if another process does.
        """
        return device_lock(data_dir) if self.uuid is None else gpu_lock(self.uuid)

    def open(self, settings: Settings) -> Pool:
        """Start a process that times on this device."""
        return runner_pool(settings, self.environ)

    def describe(self, pool: Pool, settings: Settings) -> TargetInfo:
        """Return the device's description by a process that :meth:`open` started.

        Raises:
            TargetError: If the device cannot be used.
        """
        info: TargetInfo = pool.call(
            settings.engine, "describe_target", self.spec, timeout_secs=_DESCRIBE_TIMEOUT_SECS
        )
        if info.problem:
            raise TargetError(f"device {self.name} cannot be used: {info.problem}")
        return info


@dataclass(frozen=True)
class DescribedDevice:
    """Device of this machine with its fingerprint.

    Attributes:
        name: Name, unique on this machine.
        kind: Kind, as in :attr:`tuner.engines.base.TargetInfo.kind`.
        fingerprint: Fingerprint, as in :attr:`tuner.engines.base.TargetInfo.device`.
    """

    name: str
    kind: str
    fingerprint: Mapping[str, Any]


def local_devices() -> list[LocalDevice]:
    """Return the CPU of this machine and all its GPUs, visible to this process or not."""
    return _devices(gpus.list_gpus())


def usable_devices() -> list[LocalDevice]:
    """Return the CPU of this machine and the GPUs that CUDA_VISIBLE_DEVICES does not hide."""
    return _devices(gpus.usable_gpus())


def list_devices(settings: Settings, devices: Sequence[LocalDevice]) -> list[DescribedDevice]:
    """Return devices with their fingerprints, each described in a process of its own.

    Raises:
        TargetError: If a device cannot be used.
    """
    described = []
    for device in devices:
        with device.open(settings) as pool:
            info = device.describe(pool, settings)
        described.append(DescribedDevice(device.name, info.kind, info.device))
    return described


def _devices(visible: Sequence[gpus.Gpu]) -> list[LocalDevice]:
    cpu = LocalDevice(CPU, CPU_KIND, "llvm")
    return [
        cpu,
        *(LocalDevice(f"gpu{gpu.index}", "cuda", "cuda", {_VISIBLE: gpu.uuid}) for gpu in visible),
    ]
