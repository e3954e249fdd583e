"""Targets for NVIDIA GPUs: limits, architectures, detection of the local GPU."""

import re
from dataclasses import asdict
from typing import Any

import tvm
from tvm.target import Target

from tuner.devices import gpus
from tuner.engines.relax.codegen import nvrtc
from tuner.engines.relax.target import devices
from tuner.errors import TargetError

# Limits that candidate generation needs for an absent GPU: equal on all that NVRTC compiles
# for (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
LIMITS = {
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "thread_warp_size": 32,
    "max_num_threads": 1024,
    "registers_per_block": 65536,
}
# First architectures with specific code: sm_90a runs on 9.0 alone, sm_100f on its family.
_FIRST_WITH_LETTER = {"": 0, "a": 90, "f": 100}


def detect() -> dict[str, Any]:
    """Describe the GPU that this process sees.

    Raises:
        TargetError: If there is none.
    """
    visible = gpus.visible_gpu()
    if visible is None:
        raise TargetError(
            "no CUDA device was found on this machine (tuner doctor shows what it lacks); to build "
            "for one, name it, for example cuda:sm_90"
        )
    gpu, limits = visible
    return {
        "kind": "cuda",
        "arch": gpu.arch,
        "max_threads_per_block": limits.n_threads,
        # Without request; TVM requests more for dynamic memory only.
        "max_shared_memory_per_block": limits.shared_bytes,
        "thread_warp_size": limits.warp_size,
        "max_num_threads": limits.n_threads,
        "registers_per_block": limits.n_registers,
        "l2_cache_size_bytes": limits.l2_bytes,
    }


def name(arch: str) -> dict[str, Any]:
    """Describe a GPU by its architecture; the GPU may be absent.

    Raises:
        TargetError: If no compiler supports it; the message names the supported ones.
    """
    _check(arch, f"cuda:{arch}")
    return {"kind": "cuda", "arch": arch, **LIMITS}


def complete(target: Target, spec: str) -> Target:
    """Add the missing limits of a GPU.

    Args:
        target: Target as TVM parsed it.
        spec: Target as the user wrote it, for messages.

    Raises:
        TargetError: If no compiler supports its architecture; the message names the supported ones.
    """
    _check(str(target.attrs.get("arch", "")), spec)
    missing = {name: value for name, value in LIMITS.items() if name not in target.attrs}
    exported = {str(name): value for name, value in target.export().items() if name != "tag"}
    return Target({**exported, **missing}) if missing else target


def _check(arch: str, spec: str) -> None:
    known = nvrtc.known_architectures()
    named = re.fullmatch(r"sm_(\d+)([af]?)", arch)
    number = int(named[1]) if named else -1
    if named and number >= _FIRST_WITH_LETTER[named[2]] and number in (known or [number]):
        return
    names = ", ".join(f"sm_{number}" for number in known) or "sm_80 and sm_90, for example"
    raise TargetError(
        f"target {spec!r}: the CUDA compiler knows no architecture {arch!r}; it knows {names}"
    )


def describe_device(target: Target) -> dict[str, Any]:
    """Return the properties that measurements depend on: a matching GPU, else the architecture."""
    arch = str(target.attrs["arch"])
    visible = gpus.visible_gpu()
    if visible is None or not devices.runs_on(arch, visible[0].capability):
        return {"name": arch}
    gpu, limits = visible
    properties = {**asdict(gpu), "n_multiprocessors": limits.n_multiprocessors}
    return {name: properties[name] for name in gpus.IDENTITY if properties[name] is not None}


def problem_of(target: Target) -> str:
    """Return the reason this machine cannot run code for a GPU; empty if it can."""
    device = tvm.cuda()
    if not device.exist:
        return "this machine has no CUDA device"
    arch, capability = str(target.attrs["arch"]), str(device.compute_version)
    if devices.runs_on(arch, capability):
        return ""
    return f"it is code for {arch}, the GPU of this machine has compute capability {capability}"
