"""The kinds of targets, for modules that need no compiler to ask for one."""

from tvm.target import Target


def is_cpu(target: Target) -> bool:
    """Return True if a target is a CPU."""
    return str(target.kind.name) == "llvm"


def is_cuda(target: Target) -> bool:
    """Return True if a target is an NVIDIA GPU."""
    return str(target.kind.name) == "cuda"
