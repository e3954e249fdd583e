"""Resolution of targets on remote devices."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import tvm
from tvm.target import Target, codegen

from tuner.engines.base import TargetInfo
from tuner.engines.linker import find_linker
from tuner.engines.relax.target import cpu_targets, devices, targets
from tuner.engines.runtime import onednn
from tuner.errors import TargetError, WorkError

if TYPE_CHECKING:
    from tuner.engines.relax.run.rpc import RemoteDevice


def describe_target(spec: str, remote: "RemoteDevice") -> TargetInfo:
    """Resolve a target on a remote device; see :class:`Engine`.

    The device cannot name itself, so the fingerprint has no name; the caller adds one.

    Raises:
        TargetError: If it is unknown or malformed, or the device cannot detect it.
    """
    detect = {"llvm": _detect_cpu, "cuda": _detect_gpu}.get(spec.strip())
    info = targets.describe_target(detect(remote.session) if detect else spec)
    if onednn.NAME in json.loads(info.spec).get("libs", ()):
        raise TargetError("kernels on remote devices cannot call oneDNN: leave it out")
    return replace(info, device=_device(info, remote), problem=_problem(info, remote))


def _detect_cpu(session: Any) -> str:
    """Detect the CPU by the compiler of the device; a board has none."""
    cpu = _ask(session, "target.llvm_get_system_cpu")
    triple = _ask(session, "target.llvm_get_system_triple")
    if cpu is None or triple is None:
        raise TargetError(
            "the remote device has no compiler that could tell its CPU; name it as JSON, such as "
            '{"kind":"llvm","mtriple":"aarch64-linux-gnu","mcpu":"cortex-a72","num-cores":4}'
        )
    target = {"kind": "llvm", "mcpu": str(cpu), "num-cores": _n_threads(session)}
    if cpu_targets.machine_of({"mtriple": triple}) != cpu_targets.machine_of({}):
        target["mtriple"] = str(triple)
    return json.dumps(target)


def _detect_gpu(session: Any) -> str:
    device = session.cuda()
    if not device.exist:
        raise TargetError("the remote device has no CUDA device")
    return f"cuda:sm_{str(device.compute_version).replace('.', '')}"


def _device(info: TargetInfo, remote: "RemoteDevice") -> dict[str, Any]:
    versions = {"tvm": tvm.__version__, "llvm": int(codegen.llvm_version_major())}
    if info.kind != "cuda":
        return {**versions, "n_threads": _n_threads(remote.session)}
    device = remote.device(info.spec)
    if not device.exist:
        return versions
    return {**versions, "gpu": str(device.device_name), "capability": str(device.compute_version)}


def _problem(info: TargetInfo, remote: "RemoteDevice") -> str:
    if info.kind == "cuda":
        return _gpu_problem(info, remote.device(info.spec))
    triple = _ask(remote.session, "target.llvm_get_system_triple")
    model = _ask(remote.session, "target.llvm_get_system_cpu")
    there = cpu_targets.machine_of({"mtriple": triple or info.machine})
    if there != info.machine:
        return f"it is code for {info.machine}, the remote device is {there}"
    try:
        find_linker(info.machine)
    except WorkError as error:
        return str(error)
    # A board without a compiler cannot tell its CPU.
    if model is None:
        return ""
    remote_cpu = Target({"kind": "llvm", "mtriple": str(triple), "mcpu": str(model)})
    missing = sorted(set(info.features) - set(cpu_targets.features_of(remote_cpu)))
    return f"it needs {', '.join(missing)}, which the remote CPU ({model}) lacks" if missing else ""


def _gpu_problem(info: TargetInfo, device: Any) -> str:
    if not device.exist:
        return "the remote device has no CUDA device"
    arch, capability = json.loads(info.spec)["arch"], str(device.compute_version)
    if not devices.runs_on(arch, capability):
        return f"it is code for {arch}, the remote device has compute capability {capability}"
    return ""


def _n_threads(session: Any) -> int:
    return int(_ask(session, "runtime.NumThreads") or 1)


def _ask(session: Any, function: str) -> Any:
    """Call a remote function without arguments; return None if it does not exist."""
    try:
        remote = session.get_function(function)
    except AttributeError:
        return None
    return remote()
