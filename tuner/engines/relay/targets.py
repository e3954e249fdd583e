"""Resolution of target specifications to canonical JSON and a device fingerprint."""

import json
from functools import lru_cache
from typing import Any

import tvm
from tvm import auto_scheduler
from tvm.target import Target, codegen

from tuner.devices.cpu_caches import machine_cores
from tuner.engines import tvm_json
from tuner.engines.base import TargetInfo
from tuner.engines.linker import linker_version
from tuner.engines.relay.settings import COMPILER, PIPELINE
from tuner.errors import TargetError, summary
from tuner.library import processors

# Attributes that a target may set; TVM passes others to compilers as options.
_ALLOWED = {
    "device",
    "fast-math",
    "keys",
    "kind",
    "mabi",
    "mattr",
    "mcpu",
    "mfloat-abi",
    "model",
    "mtriple",
    "num-cores",
    "opt-level",
}
_CACHE_LINE_BYTES = 64
_VECTOR_BYTES = 64


def describe_target(spec: str) -> TargetInfo:
    """Resolve ``llvm``, a TVM tag or JSON; see :class:`Engine`."""
    target = _parse(spec.strip())
    model = str(target.attrs.get("mcpu", "generic"))
    known = {str(arch) for arch in codegen.llvm_get_cpu_archlist(Target("llvm"))}
    if _machine(target) == _machine(Target("llvm")) and model not in known:
        raise TargetError(f"LLVM {codegen.llvm_version_major()} knows no CPU {model!r}")
    machine, features = _machine(target), _features(target)
    return TargetInfo(
        spec=tvm_json.canonical_target(target),
        kind=str(target.kind.name),
        device=_device(),
        pipeline=PIPELINE,
        problem=processors.refusal(machine, features),
        compiler={**COMPILER, "linker": linker_version()},
        machine=machine,
        features=features,
    )


def canonical(text: str, n_cores: int) -> str:
    """Return the canonical JSON of a target as logs write it, without looking at devices.

    Args:
        text: Target kind and options, as on a command line.
        n_cores: Cores of the device, unless the text has them.

    Raises:
        TargetError: If it is unknown, or this engine does not support it.
    """
    try:
        attributes = tvm_json.plain(Target(text).export())
    except (ValueError, TypeError, tvm.TVMError) as error:
        raise TargetError(f"unknown target {text!r}: {summary(error, last=True)}") from error
    if attributes["kind"] != "llvm":
        raise TargetError(
            f"target kind {attributes['kind']!r} is not supported by the engine relay"
        )
    written = {name: value for name, value in attributes.items() if value != ""}
    return tvm_json.canonical_target(_parse(json.dumps({"num-cores": n_cores, **written})))


@lru_cache(maxsize=8)
def make_target(spec: str) -> Target:
    """Build the TVM target of a canonical spec."""
    return Target(json.loads(spec))


@lru_cache(maxsize=8)
def hardware_of(spec: str) -> auto_scheduler.HardwareParams:
    """Return the hardware parameters of the search, with the number of cores.

    Vectors and cache lines are Ansor's defaults for CPUs.
    """
    n_cores = int(make_target(spec).attrs.get("num-cores", 1))
    return auto_scheduler.HardwareParams(n_cores, _VECTOR_BYTES, _CACHE_LINE_BYTES, 0, 0, 0, 0, 0)


def _parse(spec: str) -> Target:
    if spec.split(":", maxsplit=1)[0] == "cuda":
        raise TargetError(
            "the engine relay builds for CPUs alone: its TVM was compiled without CUDA; "
            "use the target llvm, or the engine relax"
        )
    try:
        target = Target(_read(spec))
    except json.JSONDecodeError as error:
        raise TargetError(f"target is not valid JSON: {error}") from error
    except (ValueError, TypeError, tvm.TVMError) as error:
        raise TargetError(
            f"unknown target {spec!r}: {summary(error, last=True)}; use llvm, a TVM tag or JSON"
        ) from error
    kind = str(target.kind.name)
    if kind != "llvm":
        raise TargetError(f"target kind {kind!r} is not supported by the engine relay; use llvm")
    if "num-cores" not in target.attrs:
        target = Target({**tvm_json.plain(target.export()), "num-cores": machine_cores()})
    return target


def _read(spec: str) -> Any:
    if spec == "llvm":
        # Without what the kernel of the operating system does not report.
        model = str(codegen.llvm_get_system_cpu())
        target = {"kind": "llvm", "mcpu": model}
        detected = processors.detect(model, lambda: _all_features(Target(target)))
        return {"kind": "llvm", **detected, "num-cores": machine_cores()}
    if not spec.startswith("{"):
        if len(spec.split()) > 1:
            raise TargetError(
                f"write the options of {spec!r} as JSON, such as "
                '{"kind": "llvm", "mcpu": "skylake"}'
            )
        return spec
    written = json.loads(spec)
    for name in written:
        if name not in _ALLOWED:
            raise TargetError(
                f"a target may not set {name!r}; it may set {', '.join(sorted(_ALLOWED))}"
            )
    return written


def _device() -> dict[str, Any]:
    versions = {"tvm": str(tvm.__version__), "llvm": int(codegen.llvm_version_major())}
    return {"name": processors.cpu_name(), "n_cores": machine_cores(), **versions}


def _machine(target: Target) -> str:
    triple = str(target.attrs.get("mtriple", "")) or str(codegen.llvm_get_system_triple())
    return processors.machine_name(triple.split("-", 1)[0])


def _features(target: Target) -> tuple[str, ...]:
    return processors.used_by_code(_machine(target), _all_features(target))


def _all_features(target: Target) -> set[str]:
    return {str(feature) for feature in codegen.llvm_get_cpu_features(target)}
