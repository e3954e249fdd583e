"""Relations between targets: other versions of the same software, other devices, and logs."""

import json
from collections.abc import Mapping
from typing import Any

from records.logs import imported
from records.models import Target
from tuner.engines.base import TargetInfo

# Entries of a device fingerprint that describe the device; the others are versions.
_DEVICE = ("name", "n_cores")
# Attributes of a target that decide its instructions; an upgrade may add or drop the others.
_HARDWARE = ("kind", "arch", "mcpu", "mattr", "mtriple", "mabi", "mfloat-abi", "num-cores", "host")

Differences = Mapping[str, tuple[Any, Any]]


def differences(target: TargetInfo, other: Target) -> dict[str, tuple[Any, Any]]:
    """Compare the fingerprints and texts of two targets; each value of ``other`` comes first."""
    here, there = dict(target.device), other.device
    differs = {
        name: (there.get(name), here.get(name))
        for name in sorted(here.keys() | there.keys())
        if here.get(name) != there.get(name)
    }
    if other.spec != target.spec:
        differs["target"] = (other.spec, target.spec)
    return differs


def is_related(target: TargetInfo, other: Target) -> bool:
    """Return whether code for one target is code for the other, apart from software versions."""
    if other.spec == target.spec:
        return True
    upgraded = any(
        other.device.get(name) != target.device.get(name)
        for name in (other.device.keys() | target.device.keys()) - set(_DEVICE)
    )
    try:
        there, here = json.loads(other.spec), json.loads(target.spec)
        return upgraded and all(there.get(name) == here.get(name) for name in _HARDWARE)
    except (ValueError, AttributeError):
        return False


def is_foreign(target: TargetInfo, other: Target) -> bool:
    """Return whether the targets belong to different devices."""
    return any(target.device.get(name) != other.device.get(name) for name in _DEVICE)


def is_of_log(target: TargetInfo, other: Target) -> bool:
    """Return whether the other target comes from a log and is of the same kind."""
    kinds = {str(json.loads(spec).get("kind")) for spec in (target.spec, other.spec)}
    return imported.is_logged(other) and len(kinds) == 1
