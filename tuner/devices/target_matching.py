"""Which targets are for which devices: what a process says that times on a device of one kind.

Workers of every environment import this.
"""

import json
from dataclasses import replace
from importlib import import_module

from tuner.engines.base import TargetInfo

_KINDS = {"llvm", "cuda"}


def describe(engine: str, kind: str, spec: str) -> TargetInfo:
    """Resolve a target in a process that times on a device of a kind, for that device alone.

    A process that times on a GPU can run code for the CPU too, and the other way round: whoever
    did both would measure on a device that another process owns.
    """
    return only_of(kind, import_module(engine).describe_target(spec))


def refusal(kind: str, spec: str) -> TargetInfo | None:
    """Return what a device of a kind says of a target whose JSON names another; None: ask it."""
    named = kind_named(spec)
    # What an engine of its own calls its targets is for that engine to say.
    return only_of(kind, TargetInfo(spec, named, {})) if named in _KINDS - {kind} else None


def kind_named(spec: str) -> str:
    """Return the kind that a target's JSON names; empty if it names none."""
    try:
        named = json.loads(spec)["kind"]
    except (ValueError, TypeError, KeyError):
        return ""
    return named if isinstance(named, str) else ""


def only_of(kind: str, info: TargetInfo) -> TargetInfo:
    """Return a target with a problem where it is of another kind than a device is."""
    if info.kind == kind or info.problem:
        return info
    return replace(info, problem=f"it is for {info.kind}, and this device is measured for {kind}")
