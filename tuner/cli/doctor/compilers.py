"""Checks of what compiles kernels: C compiler, linker, the engine's target, CUDA."""

import ctypes
import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tuner.cli.doctor.check import Check, run_tool
from tuner.devices import gpus
from tuner.errors import install_command, last_line, summary
from tuner.settings import Settings

_TARGET_TIMEOUT_SECS = 120.0
# The first driver for CUDA 13.
_MIN_DRIVER = 580
_DRIVER = "libcuda.so.1"


def check_compiler() -> Check:
    """Look for the compiler driver that links libraries."""
    return _check_tool(
        "C compiler", ("cc", "gcc", "clang"), "install one, for example: apt install gcc"
    )


def check_linker() -> Check:
    """Look for the linker that links candidates."""
    return _check_tool("linker", ("ld",), "install binutils, for example: apt install binutils")


def check_target(settings: Settings) -> Check:
    """Describe this CPU in a worker; its log is temporary, as the data directory may be broken."""
    from tuner.workers.factory import fresh_worker

    fix = "reinstall apache-tvm and apache-tvm-ffi in the versions above"
    with tempfile.TemporaryDirectory(prefix="tuner-doctor-") as folder:
        own = replace(settings, data_dir=Path(folder), cache_dir=Path(folder, "cache"))
        try:
            with fresh_worker(own, "doctor") as worker:
                target = worker.call(
                    settings.engine, "describe_target", "llvm", timeout_secs=_TARGET_TIMEOUT_SECS
                )
        except Exception as error:  # an engine may fail in any way, which is the result
            log = last_line(_text(Path(folder) / "logs" / "doctor.log"))
            reason = f"{summary(error)}; its log ends with: {log}" if log else summary(error)
            return Check("target", "missing", f"{settings.engine} fails: {reason}", fix)
    device = dict(target.device)
    details = {"spec": target.spec, "device": device}
    if target.problem:
        return Check("target", "missing", target.problem, fix, details=details)
    spec = json.loads(target.spec)
    options = [f"llvm -mcpu={spec.get('mcpu', 'generic')}"]
    if "mattr" in spec:
        options.append(f"-mattr={','.join(spec['mattr'])}")
    description = ", ".join(f"{name} {value}" for name, value in device.items())
    return Check("target", "ok", f"{' '.join(options)}: {description}", details=details)


def check_cuda() -> Check:
    """Look for the NVIDIA driver and its GPUs, as measurements find them."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return Check(
            "CUDA",
            "missing",
            f"{_DRIVER}, the library of the NVIDIA driver, is not installed; optional",
            "install the NVIDIA driver; in a container, start it with --gpus all",
            essential=False,
        )
    listed = gpus.list_gpus()
    if not listed:
        result = f"{_DRIVER} is installed, but NVML lists no GPU"
        fix = (
            f"{install_command('cuda')}, and load the driver (nvidia-smi must work); "
            "in a container, start it with --gpus all"
        )
        return Check("CUDA", "warning", result, fix, essential=False)
    names = [f"{gpu.name}, {gpu.capability}, {gpu.driver}" for gpu in listed]
    result, details = "; ".join(names), {"gpus": names}
    number = re.match(r"\d+", listed[0].driver.strip())
    if (int(number.group()) if number else 0) < _MIN_DRIVER:
        fix = f"upgrade the NVIDIA driver to {_MIN_DRIVER} or later: kernels need CUDA 13"
        return Check("CUDA", "warning", result, fix, essential=False, details=details)
    return Check("CUDA", "ok", result, essential=False, details=details)


def _check_tool(name: str, programs: Sequence[str], fix: str) -> Check:
    path = next((path for path in map(shutil.which, programs) if path), None)
    if path is None:
        return Check(name, "missing", f"no {' or '.join(programs)} on PATH", fix)
    failure, text = run_tool([path, "--version"])
    if failure:
        return Check(name, "missing", failure, fix)
    return Check(name, "ok", f"{path}: {(text.splitlines() or ['unknown version'])[0]}")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
