"""Resolution of target specifications to canonical JSON and a device fingerprint."""

import json
import re
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import tvm
import tvm_ffi
from tvm.target import Target, codegen

from tuner.devices import gpus
from tuner.devices.cpu_caches import machine_cores
from tuner.engines import tvm_json
from tuner.engines.base import TargetInfo
from tuner.engines.linker import linker_version
from tuner.engines.relax import fast_import
from tuner.engines.relax.codegen.cpu import dot_instructions
from tuner.engines.relax.codegen.cpu.dot_instructions import dot_instruction
from tuner.engines.relax.codegen.cuda import nvrtc
from tuner.engines.relax.schedules.variants.onednn import calls_onednn
from tuner.engines.relax.settings import COMPILER
from tuner.engines.relax.target import cpu_targets, devices
from tuner.engines.relax.target.kinds import is_cpu, is_cuda
from tuner.engines.relax.triton.compilation import compiler
from tuner.engines.runtime import onednn
from tuner.errors import TargetError, summary
from tuner.library import processors

# Bump when a change of graph/pipeline.py, of its passes or of fusion changes the workloads of
# networks: extractions and libraries are cached by it. Records are keyed by the workload alone.
PIPELINE = "relax-47"

# Attributes that a target may set. TVM passes others to compilers as options ("cl-opt", "jit",
# "system-lib", ...), some of them global to the process, or reads them as file names.
_ALLOWED = {
    "arch",
    "device",
    "fast-math",
    "fast-math-arcp",
    "fast-math-contract",
    "fast-math-ninf",
    "fast-math-nnan",
    "fast-math-nsz",
    "fast-math-reassoc",
    "host",
    "keys",
    "kind",
    "l2_cache_size_bytes",
    "libs",
    "mabi",
    "mattr",
    "max_num_threads",
    "max_shared_memory_per_block",
    "max_threads_per_block",
    "mcpu",
    "mfloat-abi",
    "model",
    "mtriple",
    "num-cores",
    "opt-level",
    "registers_per_block",
    "tag",
    "thread_warp_size",
    "vector-width",
}

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


def describe_target(spec: str) -> TargetInfo:
    """Resolve ``llvm``, ``llvm+onednn``, ``cuda:sm_90``, a TVM tag or JSON; see :class:`Engine`."""
    target, kind = _supported(spec)
    host = (target.host or Target({"kind": "llvm"})) if is_cuda(target) else target
    # With Triton, a region is one subgraph on GPUs.
    is_with_triton = kind == "cuda" and compiler.supports(str(target.attrs["arch"]))
    return TargetInfo(
        spec=tvm_json.canonical_target(target),
        kind=kind,
        device=_device(target, kind),
        pipeline=f"{PIPELINE}-triton" if is_with_triton else PIPELINE,
        problem=_problem(target, kind, host),
        compiler=_compiler(target, kind),
        has_schedules_by_rule=kind == "llvm",
        machine=cpu_targets.machine_of(host.attrs),
        features=cpu_targets.features_of(host),
    )


def canonical(spec: str) -> str:
    """Return the canonical JSON of a target of any kind, without looking at devices.

    Raises:
        TargetError: If it is unknown, malformed or of a kind that is not supported.
    """
    return tvm_json.canonical_target(_supported(spec)[0])


def _supported(spec: str) -> tuple[Target, str]:
    target = _parse(spec.strip())
    kind = str(target.kind.name)
    if kind not in ("llvm", "cuda"):
        raise TargetError(f"target kind {kind!r} is not supported; use llvm or cuda")
    # A tag may bring attributes that its text does not name.
    _check_attributes(tvm_json.plain(target.export()))
    return target, kind


@lru_cache(maxsize=8)
def make_target(spec: str, *, intrinsics: bool = True) -> Target:
    """Build the TVM target of a canonical spec, and load the tensor intrinsics of a CPU.

    Intrinsics of GPUs are loaded by name: see :mod:`tuner.engines.relax.schedules.gpu.intrinsics`.
    """
    target = Target(json.loads(spec))
    if intrinsics and not is_cuda(target):
        fast_import.load_intrinsics(cpu_targets.machine_of(target.attrs))
        instruction = dot_instruction(target)
        if instruction is not None:
            dot_instructions.register(instruction)
    return target


def _parse(spec: str) -> Target:
    try:
        written = _read(spec)
        if isinstance(written, dict):
            _check_attributes(written)
        target = Target(written)
        # Candidates need the cores of a CPU and the limits of a GPU.
        if is_cuda(target):
            return complete(target, spec)
        if not is_cpu(target) or "num-cores" in target.attrs:
            return target
        return Target(
            {**json.loads(tvm_json.canonical_target(target)), "num-cores": machine_cores()}
        )
    except json.JSONDecodeError as error:
        raise TargetError(f"target is not valid JSON: {error}") from error
    except (ValueError, TypeError, RuntimeError) as error:
        raise TargetError(
            f"unknown target {spec!r}: {summary(error)}; use llvm, llvm -mcpu=haswell, "
            "llvm+onednn, cuda:sm_90, a TVM tag or JSON"
        ) from error


def _read(spec: str) -> dict[str, Any] | str:
    """Return the attributes of a target, or the name of a tag."""
    if spec in _DETECTED:
        return _DETECTED[spec]()
    if spec.startswith("cuda:"):
        return name(spec.removeprefix("cuda:"))
    if spec.startswith("{"):
        attributes: dict[str, Any] = json.loads(spec)
        return attributes
    if len(spec.split()) > 1:
        return cpu_targets.read_options(spec)
    cpu_targets.suggest(spec)
    return spec


# Devices of this machine.
_DETECTED = {
    "llvm": cpu_targets.detect,
    f"llvm+{onednn.NAME}": lambda: {**cpu_targets.detect(), "libs": [onednn.NAME]},
    "cuda": detect,
}


def _check_attributes(written: dict[str, Any]) -> None:
    """Refuse attributes that users must not set, and values that LLVM would ignore.

    Raises:
        TargetError: If it has such an attribute or value; the message names it.
    """
    if written.get("kind") == "llvm":
        cpu_targets.check(written)
    for name, value in written.items():
        if name not in _ALLOWED and not name.startswith("feature."):
            raise TargetError(
                f"a target may not set {name!r}; it may set {', '.join(sorted(_ALLOWED))}"
            )
        # A host may be an object, or its JSON text.
        is_json = isinstance(value, str) and value.strip().startswith("{")
        inner = json.loads(value) if is_json else value
        if isinstance(inner, dict):
            _check_attributes(inner)


def _compiler(target: Target, kind: str) -> dict[str, Any]:
    common = {**COMPILER, "tvm_ffi": tvm_ffi.__version__, "linker": linker_version()}
    if calls_onednn(target):
        common["onednn_calls"] = onednn.version_of_calls()
    if kind == "cuda":
        return {**common, **nvrtc.describe_compiler(), "triton": compiler.version(), "launches": 1}
    return common


def _device(target: Target, kind: str) -> dict[str, Any]:
    versions = {"tvm": tvm.__version__, "llvm": int(codegen.llvm_version_major())}
    if kind == "cuda":
        return {**describe_device(target), **versions}
    if calls_onednn(target) and not onednn.problem():
        versions[onednn.NAME] = onednn.load()
    return {"name": processors.cpu_name(), "n_cores": machine_cores(), **versions}


def _problem(target: Target, kind: str, host: Target) -> str:
    if kind == "cuda" and (problem := problem_of(target)):
        return problem
    if calls_onednn(target) and (problem := onednn.problem()):
        return problem
    return processors.refusal(cpu_targets.machine_of(host.attrs), cpu_targets.features_of(host))
