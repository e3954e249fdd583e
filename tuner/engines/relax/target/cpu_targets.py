"""Targets for CPUs: detection of this one, checks of what users write, and what code needs."""

import re
import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from tvm.target import Target, codegen

from tuner.devices.cpu_caches import machine_cores
from tuner.engines.linker import MACHINES
from tuner.errors import TargetError
from tuner.library import processors

# Libraries are ELF files for Linux.
_OTHER_SYSTEMS = ("apple", "cygwin", "darwin", "ios", "macos", "mingw", "msvc", "wasi", "windows")
# Machines for which LLVM names CPUs without 64 bits as well.
_WITH_MODES = ("riscv64", "x86_64")
_LISTS = ("keys", "libs", "mattr")


def detect() -> dict[str, Any]:
    """Return the target of this CPU, without what the kernel does not report."""
    model = str(codegen.llvm_get_system_cpu())
    detected = processors.detect(model, lambda: _features(Target({"kind": "llvm", "mcpu": model})))
    return {"kind": "llvm", **detected, "num-cores": machine_cores()}


def read_options(spec: str) -> dict[str, Any]:
    """Return the attributes of a target that is written as options: ``llvm -mcpu=haswell``.

    Raises:
        TargetError: If a word is not an option with a value.
    """
    kind, *words = shlex.split(spec)
    attributes: dict[str, Any] = {"kind": kind}
    for word in words:
        option = re.fullmatch(r"--?([a-z][\w-]*)=(.*)", word)
        if option is None:
            raise TargetError(
                f"target {spec!r} has {word!r}, which is not an option such as -mcpu=haswell"
            )
        name, value = option.groups()
        if name in _LISTS:
            attributes[name] = value.split(",")
        else:
            attributes[name] = int(value) if value.isdecimal() else value
    return attributes


def suggest(name: str) -> None:
    """Raise an error that says how to write the name of a CPU as a target.

    Raises:
        TargetError: If the name is that of a CPU.
    """
    if name.isascii() and codegen.llvm_is_valid_cpu(name, _triple({})):
        raise TargetError(f"{name!r} is a CPU and not a target; use llvm -mcpu={name}")


def check(written: Mapping[str, Any]) -> None:
    """Check the attributes of a CPU target; LLVM would ignore most faults with a warning.

    Raises:
        TargetError: If it names a system, machine, CPU or feature that is unknown, or its CPU does
            not run the code of its machine.
    """
    cores = written.get("num-cores", 1)
    if not isinstance(cores, int) or cores < 1:
        raise TargetError(f"num-cores must be at least 1, got {cores!r}")
    triple, machine = _triple(written), machine_of(written)
    if any(system in triple for system in _OTHER_SYSTEMS):
        raise TargetError(f"mtriple {triple!r} is not for Linux, and libraries are")
    if machine not in MACHINES.values():
        raise TargetError(
            f"mtriple {triple!r} is for the machine {machine}, which is not supported; those are "
            f"{', '.join(sorted(MACHINES.values()))}"
        )
    model = str(written.get("mcpu", "generic"))
    if not codegen.llvm_is_valid_cpu(model, triple):
        hint = _similar(model, _models(triple)) or "; llvm alone means this CPU"
        raise TargetError(f"{_version()} knows no CPU {model!r} for {machine}{hint}")
    if machine in _WITH_MODES and "64bit" not in _features_by_name(triple, model):
        raise TargetError(f"the CPU {model!r} has no 64-bit mode, which code for {machine} needs")
    attributes = written.get("mattr", [])
    if not isinstance(attributes, list):
        raise TargetError(f"mattr must be a list such as ['-avx512f'], got {attributes!r}")
    for attribute in map(str, attributes):
        sign, name = attribute[:1], attribute[1:]
        if sign not in ("+", "-"):
            raise TargetError(f"mattr {attribute!r} must begin with + or -")
        # Features that no model has, such as "retpoline", are known only one by one.
        known = _known_features(triple)
        if name not in known and name not in _features_by_name(triple, "generic", f"+{name}"):
            raise TargetError(f"{_version()} knows no feature {name!r}{_similar(name, known)}")


def machine_of(attributes: Mapping[str, Any]) -> str:
    """Return the machine that runs code for a target, as Linux names it."""
    return processors.machine_name(_triple(attributes).split("-", 1)[0])


def features_of(target: Target) -> tuple[str, ...]:
    """Return the features of its CPU that code for a target may use."""
    return processors.used_by_code(machine_of(target.attrs), _features(target))


def _similar(name: str, known: Sequence[str]) -> str:
    similar = get_close_matches(name.lower(), known)
    return f"; did you mean {' or '.join(similar)}?" if similar else ""


def _version() -> str:
    return f"LLVM {codegen.llvm_version_major()}"


@lru_cache(maxsize=8)
def _models(triple: str) -> tuple[str, ...]:
    target = Target({"kind": "llvm", "mtriple": triple})
    return tuple(sorted(map(str, codegen.llvm_get_cpu_archlist(target))))


@lru_cache(maxsize=8)
def _known_features(triple: str) -> tuple[str, ...]:
    models = _models(triple)
    return tuple(sorted(set().union(*(_features_by_name(triple, model) for model in models))))


@lru_cache(maxsize=1024)
def _features_by_name(triple: str, model: str, *attributes: str) -> frozenset[str]:
    written = {"kind": "llvm", "mtriple": triple, "mcpu": model, "mattr": list(attributes)}
    return _features(Target(written))


def _features(target: Target) -> frozenset[str]:
    return frozenset(map(str, codegen.llvm_get_cpu_features(target)))


def _triple(attributes: Mapping[str, Any]) -> str:
    return str(attributes.get("mtriple", "")) or str(codegen.llvm_get_system_triple())
