"""Matching of targets and devices: a device describes targets of its own kind alone.

Workers of every environment import this module.
"""

import json
from dataclasses import replace
from importlib import import_module

from tuner.engines.base import TargetInfo

_KINDS = {"llvm", "cuda"}


def describe(engine: str, kind: str, spec: str) -> TargetInfo:
    """Resolve a target in a process that times on a device of a kind.

    Targets of other kinds get a problem. A process that times on a GPU can run code for the CPU
    too, and the other way round, but would then measure on a device that another process owns.
    """
    return only_of(kind, import_module(engine).describe_target(spec))


def refusal(kind: str, spec: str) -> TargetInfo | None:
    """Return a description with a problem if the target's JSON names another kind, else None."""
    named = kind_named(spec)
    # Kinds of other engines are for them to resolve.
    return only_of(kind, TargetInfo(spec, named, {})) if named in _KINDS - {kind} else None


def kind_named(spec: str) -> str:
    """Return the kind in a target's JSON; empty if there is none."""
    try:
        named = json.loads(spec)["kind"]
    except (ValueError, TypeError, KeyError):
        return ""
    return named if isinstance(named, str) else ""


def only_of(kind: str, info: TargetInfo) -> TargetInfo:
    """Return a description, with a problem if the target is of another kind than the device."""
    if info.kind == kind or info.problem:
        return info
    return replace(info, problem=f"it is for {info.kind}, and this device is measured for {kind}")
