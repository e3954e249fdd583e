"""The processor of this machine, and whether it runs the code of a library."""

import platform
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tuner.errors import TargetError
from tuner.library.manifest import Manifest

_CPU_INFO = Path("/proc/cpuinfo")
# Instruction sets that LLVM uses without being asked for an instruction: its name of each, and the
# Linux kernel's. The kernel names neither AVX10: 10.1 is what Granite Rapids has since AVX-512
# FP16, and every CPU with 10.2 has APX.
_FLAGS = {
    "x86_64": {
        "avx": "avx",
        "avx10.1": "avx512_fp16",
        "avx10.2": "apx",
        "avx2": "avx2",
        "avx512bf16": "avx512_bf16",
        "avx512bitalg": "avx512_bitalg",
        "avx512bw": "avx512bw",
        "avx512cd": "avx512cd",
        "avx512dq": "avx512dq",
        "avx512f": "avx512f",
        "avx512fp16": "avx512_fp16",
        "avx512ifma": "avx512ifma",
        "avx512vbmi": "avx512vbmi",
        "avx512vbmi2": "avx512_vbmi2",
        "avx512vl": "avx512vl",
        "avx512vnni": "avx512_vnni",
        "avx512vpopcntdq": "avx512_vpopcntdq",
        "avxifma": "avx_ifma",
        "avxneconvert": "avx_ne_convert",
        "avxvnni": "avx_vnni",
        "avxvnniint16": "avx_vnni_int16",
        "avxvnniint8": "avx_vnni_int8",
        "bmi": "bmi1",
        "bmi2": "bmi2",
        "egpr": "apx",
        "f16c": "f16c",
        "fma": "fma",
        "fma4": "fma4",
        "gfni": "gfni",
        "lzcnt": "abm",
        "movbe": "movbe",
        "popcnt": "popcnt",
        "sse3": "pni",
        "sse4.1": "sse4_1",
        "sse4.2": "sse4_2",
        "sse4a": "sse4a",
        "ssse3": "ssse3",
        "tbm": "tbm",
        "xop": "xop",
    },
    "aarch64": {
        "bf16": "bf16",
        "dotprod": "asimddp",
        "fp16fml": "asimdfhm",
        "fullfp16": "asimdhp",
        "i8mm": "i8mm",
        "lse": "atomics",
        "sve": "sve",
        "sve2": "sve2",
    },
}
# Features beyond the level below, of the x86-64 psABI.
_LEVELS = {
    "x86-64-v2": {"popcnt", "sse3", "sse4.1", "sse4.2", "ssse3"},
    "x86-64-v3": {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"},
    "x86-64-v4": {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"},
}
_ALIASES = {"amd64": "x86_64", "arm64": "aarch64", "i386": "i686", "i486": "i686", "i586": "i686"}


def machine_name(word: str) -> str:
    """Return the name of a machine as Linux has it, given that of a system or a triple."""
    word = word.lower()
    return "arm" if word.startswith("armv") else _ALIASES.get(word, word)


def this_machine() -> str:
    """Return the name of this machine, as :func:`machine_name` does."""
    return machine_name(platform.machine())


@lru_cache(maxsize=1)
def cpu_fields() -> dict[str, str]:
    """Return the fields of /proc/cpuinfo for the first core by name; empty if it is missing."""
    fields = {}
    try:
        with _CPU_INFO.open() as lines:
            # The kernel takes long to describe hundreds of cores.
            for line in iter(lines.readline, "\n"):
                if not line:
                    break
                key, _, value = line.partition(":")
                fields[key.strip()] = value.strip()
    except OSError:
        return {}
    return fields


def cpu_name() -> str:
    """Name this CPU by model, family and stepping, as far as the kernel reports them."""
    fields = cpu_fields()
    keys = ("model name", "cpu family", "model", "stepping")
    named = [fields[key] for key in keys if key in fields]
    return " / ".join(named) or platform.processor() or platform.machine()


def used_by_code(machine: str, features: Collection[str]) -> tuple[str, ...]:
    """Return the features of a target that code may use, in order; LLVM names all."""
    return tuple(sorted(_FLAGS.get(machine, {}).keys() & set(features)))


def reported_features(machine: str, fields: Mapping[str, str]) -> frozenset[str] | None:
    """Return the features that the kernel reports for a CPU; None if it reports none.

    Args:
        fields: Its fields in /proc/cpuinfo.
    """
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    if not flags:
        return None
    return frozenset(name for name, flag in _FLAGS.get(machine, {}).items() if flag in flags)


def level_of(features: Collection[str]) -> str:
    """Return the highest level of the x86-64 psABI that a CPU has; higher ones sort later."""
    reached = "x86-64"
    for level, required in _LEVELS.items():
        if not required <= set(features):
            break
        reached = level
    return reached


def detect(model: str, named: Callable[[], Collection[str]]) -> dict[str, Any]:
    """Return what a target names for this CPU; see :func:`detected`.

    Args:
        model: Name of its model in LLVM.
        named: Returns the features that LLVM knows of the model.
    """
    machine = this_machine()
    reported = reported_features(machine, cpu_fields())
    return {"mcpu": model} if reported is None else detected(machine, model, named(), reported)


def detected(
    machine: str, model: str, named: Collection[str], reported: Collection[str]
) -> dict[str, Any]:
    """Return what a target names for a CPU that need not report what its model has.

    Args:
        model: Name of the CPU's model in LLVM.
        named: Features that LLVM knows of the model.
        reported: Features that the kernel reports.

    Returns:
        ``mcpu``: the model, or the level of the x86-64 psABI if the CPU reaches a higher one than
        its model, as in virtual machines that show an old one. ``mattr``, if the CPU lacks features
        of the model: they are switched off.
    """
    level = level_of(reported)
    if machine == "x86_64" and level > level_of(named):
        return {"mcpu": level}
    missing = sorted(set(used_by_code(machine, named)) - set(reported))
    return {"mcpu": model} | ({"mattr": [f"-{name}" for name in missing]} if missing else {})


def refusal(machine: str, features: Collection[str]) -> str:
    """Return why this machine cannot run code; empty if it can.

    Args:
        machine: Machine of the code; empty if unknown.
        features: Features that it uses. The CPU counts as having them where the kernel reports
            no features at all.
    """
    here = this_machine()
    if machine not in ("", here):
        return f"it is code for {machine}, this machine is {here}"
    reported = reported_features(here, cpu_fields())
    missing = [] if reported is None else sorted(set(features) - reported)
    if not missing:
        return ""
    return f"it needs {', '.join(missing)}, which {_cpu_name()} lacks"


def check_library(described: Manifest, folder: Path) -> None:
    """Check that this machine runs the code of a library, which would end the process otherwise.

    Raises:
        TargetError: If it does not; the message names what is missing.
    """
    reason = refusal(described.machine, described.features)
    if reason:
        raise TargetError(f"this machine cannot run {folder}: {reason}; {_remedy(described)}")


def _remedy(described: Manifest) -> str:
    here = this_machine()
    if described.machine != here:
        return f"build it for {here}"
    reported = reported_features(here, cpu_fields()) or ()
    return f"build it here for llvm, or anywhere for llvm -mcpu={level_of(reported)}"


def _cpu_name() -> str:
    name = cpu_fields().get("model name")
    return f"this CPU ({name})" if name else "this CPU"
