"""The devices of this machine that kernels can be timed on, and how fleets call their kinds."""

import hashlib
import json
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
from tuner.workers.pool import Pool
from tuner.workers.pools import fresh_worker

CPU = "cpu"
CPU_KIND = "llvm"
_DESCRIBE_TIMEOUT_SECS = 300.0
_N_DIGITS = 16
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class LocalDevice:
    """A device as a process of its own sees it.

    Attributes:
        name: Unique on this machine.
        kind: As in :attr:`tuner.engines.base.TargetInfo.kind`.
        spec: The target that a process resolves to this device.
        environ: Environment variables that show a process this device and no other.
    """

    name: str
    kind: str
    spec: str
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def uuid(self) -> str | None:
        """Of a GPU."""
        return self.environ.get(_VISIBLE)

    def hold(self, data_dir: Path) -> AbstractContextManager[None]:
        """Be the only process of this machine that measures on this device.

        Raises:
            DeviceBusy: On entering, if another one does.
        """
        return device_lock(data_dir) if self.uuid is None else gpu_lock(self.uuid)

    def open(self, settings: Settings) -> Pool:
        """Start a process that times on this device."""
        return fresh_worker(settings, "runner", environ=self.environ)

    def describe(self, pool: Pool, settings: Settings) -> TargetInfo:
        """Ask such a process what the device is.

        Raises:
            TargetError: If it cannot be used.
        """
        info: TargetInfo = pool.call(
            settings.engine, "describe_target", self.spec, timeout_secs=_DESCRIBE_TIMEOUT_SECS
        )
        if info.problem:
            raise TargetError(f"device {self.name} cannot be used: {info.problem}")
        return info


@dataclass(frozen=True)
class Device:
    """A device that answered.

    Attributes:
        name: Unique on this machine.
        kind: As in :attr:`tuner.engines.base.TargetInfo.kind`.
        fingerprint: As in :attr:`tuner.engines.base.TargetInfo.device`.
    """

    name: str
    kind: str
    fingerprint: Mapping[str, Any]

    @property
    def resource(self) -> str:
        """What devices of its fingerprint are called in a fleet."""
        return resource_of(self.kind, self.fingerprint)


def local_devices() -> list[LocalDevice]:
    """List the CPU of this machine and its GPUs, whatever this process is to see of them."""
    return _seats(gpus.list_gpus())


def usable_devices() -> list[LocalDevice]:
    """List the CPU of this machine and those GPUs that CUDA_VISIBLE_DEVICES does not hide."""
    return _seats(gpus.usable_gpus())


def list_devices(settings: Settings, chosen: Sequence[LocalDevice]) -> list[Device]:
    """Ask devices for their fingerprints, each in a process of its own.

    Raises:
        TargetError: If one cannot be used.
    """
    devices = []
    for seat in chosen:
        with seat.open(settings) as pool:
            info = seat.describe(pool, settings)
        devices.append(Device(seat.name, info.kind, info.device))
    return devices


def resource_of(kind: str, fingerprint: Mapping[str, Any]) -> str:
    """Name the devices of a kind that have a fingerprint: ``tuner:KIND:`` and 16 digits."""
    text = json.dumps(fingerprint, sort_keys=True, separators=(",", ":"))
    return f"tuner:{kind}:{hashlib.sha256(text.encode()).hexdigest()[:_N_DIGITS]}"


def kind_of(resource: str) -> str:
    """Return the kind that such a name tells; empty if it is no such name."""
    parts = resource.split(":")
    return parts[1] if len(parts) == 3 and parts[0] == "tuner" else ""


def _seats(found: Sequence[gpus.Gpu]) -> list[LocalDevice]:
    cpu = LocalDevice(CPU, CPU_KIND, "llvm")
    return [
        cpu,
        *(LocalDevice(f"gpu{gpu.index}", "cuda", "cuda", {_VISIBLE: gpu.uuid}) for gpu in found),
    ]
