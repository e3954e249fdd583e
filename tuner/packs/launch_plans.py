"""Kernels and launches of networks in the index of a pack, and the bytes that they are made of."""

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from tuner.engines.packed import PackedCandidate, PackedNetwork


def kernels_of(name: str, candidate: PackedCandidate, code: bytearray) -> dict[str, Any]:
    """Append the binaries of a candidate to others; return its entry."""
    kernels = []
    for kernel in candidate.kernels:
        fields = {key: value for key, value in vars(kernel).items() if key != "code"}
        kernels.append({**fields, **_append(kernel.code, code)})
    return {"name": name, "kernels": kernels, "workspace_bytes": candidate.workspace_bytes}


def entry_of(
    plan: PackedNetwork,
    firsts: Mapping[str, tuple[str, PackedCandidate]],
    workloads: Collection[str],
    content: bytearray,
) -> dict[str, Any]:
    """Return the entry of a network.

    Args:
        plan: Its launches.
        firsts: Kernels of each workload that it has first, with their name.
        workloads: Workloads that have candidates in the pack.
        content: Receives the weights that are not drawn, and binaries without a workload.
    """
    called = list(dict.fromkeys(kernel for kernel, _ in plan.calls))
    blocks = []
    for block in plan.blocks:
        fields = asdict(block)
        stored = fields.pop("content")
        blocks.append(fields if stored is None else {**fields, **_append(stored, content)})
    # Its name tells whether a kernel has counters.
    others = {**firsts, **{name: ("", each) for name, each in plan.others.items()}}
    return {
        "blocks": blocks,
        "calls": plan.calls,
        "after": plan.after,
        "outputs": plan.outputs,
        "firsts": {name: firsts[name][0] for name in called if name in workloads},
        "others": {
            name: kernels_of(*others[name], content) for name in called if name not in workloads
        },
    }


def _append(added: bytes, content: bytearray) -> dict[str, int]:
    """Append bytes to others, unless they are there; return their place."""
    at = content.find(added)
    if at < 0:
        at = len(content)
        content += added
    return {"at": at, "size": len(added)}
