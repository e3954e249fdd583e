"""Kernels of Triton that compute a workload one after the other."""

import hashlib
import importlib
import linecache
import re
from dataclasses import dataclass
from typing import Any

#: Name of the pointer to the memory that the kernels of a program share.
WORKSPACE = "workspace"
#: Name of the pointer to the counters of a kernel.
COUNTERS = "counters"
#: Stands for the name of a kernel in its source.
KERNEL = "KERNEL"
#: Types of elements as Triton abbreviates them.
ELEMENTS = {
    "bool": "i1",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
    **{"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"},
}
# Nothing lets the next kernel start before blocks of this one end: its blocks would crowd on the
# multiprocessors that have none, which made products up to two times slower.
_WAIT = "    tl.extra.cuda.gdc_wait()\n"


def has_counters(name: str) -> bool:
    """Return whether the kernel of a variant has counters, so that it never runs beside itself."""
    return re.search(r"^triton-.*-sl\d", name) is not None


@dataclass(frozen=True)
class Kernel:
    """The source of a kernel, and how it is compiled and launched.

    Attributes:
        name: Name of its function, which no other kernel has.
        source: Source of the function and of what it calls.
        pointers: Names and types of its arguments: ``p3`` points to the fourth argument of the
            workload, ``workspace`` to the workspace of the program.
        n_blocks: Blocks of a launch.
        n_warps: Warps of a block.
        n_stages: Turns of its loops whose operands are loaded ahead.
        n_counters: Integers (int32) that are zero before and after each launch, and no argument:
            they are variables of the binary, so that each loaded library has its own.
    """

    name: str
    source: str
    pointers: tuple[tuple[str, str], ...]
    n_blocks: int
    n_warps: int
    n_stages: int
    n_counters: int = 0


@dataclass(frozen=True)
class Program:
    """The kernels of a workload.

    Attributes:
        kernels: Kernels in the order of their launches.
        workspace: Shape of the memory that they share; empty for none.
        dtype: Type of its elements.
    """

    kernels: tuple[Kernel, ...]
    workspace: tuple[int, ...] = ()
    dtype: str = "float32"


def named_by_content(
    prefix: str,
    source: str,
    pointers: tuple[tuple[str, str], ...],
    launch: tuple[int, ...],
) -> Kernel:
    """Return a kernel whose name follows from all that it is compiled from.

    Kernels of a library need different names, as TVM looks them up by name alone.

    Args:
        prefix: Beginning of the name.
        source: Source, where ``KERNEL`` stands for the name.
        pointers: Names and types of the arguments.
        launch: Blocks, warps, stages, and counters if there are any.
    """
    content = repr((source, pointers, launch)).encode()
    name = f"{prefix}_{hashlib.sha256(content).hexdigest()[:16]}"
    return Kernel(name, source.replace(KERNEL, name), pointers, *launch)


def last_arrival(counter: str, n_arrivals: int) -> list[str]:
    """Return the lines after which only the last block goes on that comes to a counter.

    What the other blocks stored before is what it loads: their threads store before the barrier,
    after which one of them counts, and its count is a release to the GPU and an acquire.

    Args:
        counter: Number of the counter.
        n_arrivals: Blocks that count with it.
    """
    return [
        "tl.debug_barrier()",
        f"counter = {COUNTERS} + {counter}",
        'arrived = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")',
        f"if arrived != {n_arrivals - 1}:",
        "    return",
        # For the next launch.
        "tl.store(counter, 0)",
    ]


def load(kernel: Kernel, *, waits: bool = False) -> Any:
    """Return the function of a kernel, as Triton's decorator makes it.

    Args:
        waits: True to wait for the end of the kernel before, so that it may be launched earlier
            (programmatic dependent launch, sm_90 and newer).
    """
    triton = importlib.import_module("triton")
    file = f"<{kernel.name}>"
    source = kernel.source
    if waits:
        head = f"def {kernel.name}("
        start = source.index(":\n", source.index(head)) + 2
        source = f"{source[:start]}{_WAIT}{source[start:]}"
    # Triton reads the source of functions where Python finds it.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    # It asks for the module of each function that a kernel calls.
    names: dict[str, Any] = {"__name__": __name__, "triton": triton, "tl": triton.language}
    exec(compile(source, file, "exec"), names)
    return names[kernel.name]
