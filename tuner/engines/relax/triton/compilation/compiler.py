"""Compilation of Triton kernels ahead of time: no GPU, driver or torch is needed.

The compiler's stages run in this process, without its cache on disk: libraries and candidates have
the cache of the tuner.
"""

import contextlib
import importlib
import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata, util
from typing import Any

from tuner.engines.relax.triton import programs
from tuner.engines.relax.triton.programs import COUNTERS, ELEMENTS, Kernel
from tuner.errors import RequestError, WorkError, install_command, summary

# Attributes with a number for each function, and the form of such entries.
_FRAME_SIZE, _REGISTERS, _PER_FUNCTION = 0x11, 0x2F, 0x04
# Entries of other forms have their value in place of a size.
_IN_PLACE = (0x01, 0x02, 0x03)
#: Architectures whose tensor cores the kernels use, as far as Triton knows them.
ARCHITECTURES = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90")
# The first with programmatic dependent launches.
_WAITING = 90
# Newer ones, for which Triton's binaries run on no other.
_EXACT = ("sm_90a", "sm_100a", "sm_103a", "sm_110a", "sm_120a", "sm_121a")
# Memory of the workload is allocated by TVM, which aligns it to more than 16 bytes.
_ALIGNED = [["tt.divisibility", 16]]
# Operations on two numbers of 16 bits, which LLVM makes of index arithmetic for sm_90 and newer.
_PAIRS = re.compile(r"\b(add|max|min)\.([su]16)x2\s+(%r\d+), (%r\d+), (%r\d+);")


@dataclass(frozen=True)
class Facts:
    """Resources and instructions of a kernel.

    Attributes:
        n_registers: Registers of a thread.
        stack_bytes: Local memory of a thread: above 0 where registers are spilled.
        static_shared_bytes: Shared memory of a block besides that of its launch.
        n_wgmma: Products of tensor cores by groups of four warps (sm_90).
        n_mma: Products of tensor cores by single warps, or of sm_100's.
        n_async_copies: Copies to shared memory that do not wait.
        waits: True if it waits for the end of the kernel before, and may be launched earlier.
        binary_arch: Architecture that the binary runs on, such as ``sm_90a``.
    """

    n_registers: int
    stack_bytes: int
    static_shared_bytes: int
    n_wgmma: int
    n_mma: int
    n_async_copies: int
    waits: bool
    binary_arch: str

    @property
    def uses_tensor_cores(self) -> bool:
        """True if products run on tensor cores."""
        return self.n_wgmma + self.n_mma > 0


def read(code: bytes, ptx: str) -> Facts:
    """Read the facts of a kernel.

    Args:
        code: Binary of one kernel.
        ptx: Source that it was assembled from.

    Raises:
        ValueError: If the binary is not an ELF file.
    """
    numbers = {_FRAME_SIZE: 0, _REGISTERS: 0}
    shared = 0
    for name, size, content in _sections(code):
        if name == ".nv.info":
            for attribute, value in _attributes(content):
                if attribute in numbers:
                    numbers[attribute] = max(numbers[attribute], value)
        if name.startswith(".nv.shared."):
            shared = max(shared, size)
    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    return Facts(
        n_registers=numbers[_REGISTERS],
        stack_bytes=numbers[_FRAME_SIZE],
        static_shared_bytes=shared,
        n_wgmma=len(re.findall(r"\bwgmma\.mma_async", ptx)),
        n_mma=len(re.findall(r"\b(?:mma\.sync|tcgen05\.mma)", ptx)),
        n_async_copies=len(re.findall(r"\bcp\.async\.c[ag]", ptx)),
        waits="griddepcontrol.wait" in ptx,
        binary_arch=target[1] if target else "",
    )


def _sections(code: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Yield the name, the size and the content of each section of a 64-bit ELF file."""
    if code[:5] != b"\x7fELF\x02":
        raise ValueError("the binary of a kernel is not a 64-bit ELF file")
    (start,) = struct.unpack_from("<Q", code, 40)
    entry_bytes, n_entries, names_at = struct.unpack_from("<HHH", code, 58)
    headers = [
        struct.unpack_from("<IIQQQQ", code, start + entry_bytes * number)
        for number in range(n_entries)
    ]
    names = code[headers[names_at][4] :]
    for name, kind, _, _, offset, size in headers:
        is_empty = kind == 8  # SHT_NOBITS
        content = b"" if is_empty else code[offset : offset + size]
        yield names[name : names.index(b"\0", name)].decode(), size, content


def _attributes(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield the attributes that have a number for a function."""
    at = 0
    while at + 4 <= len(content):
        form, attribute, size = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == _PER_FUNCTION and size == 8:
            yield attribute, struct.unpack_from("<I", content, at + 4)[0]
        if form not in _IN_PLACE:
            at += size


@dataclass(frozen=True)
class Binary:
    """A compiled kernel.

    Attributes:
        code: Binary for one architecture.
        n_parameters: Parameters of the function; those after its pointers take zero.
        n_threads: Threads of a block.
        shared_bytes: Shared memory of a block.
        facts: Resources and instructions.
    """

    name: str
    code: bytes
    n_parameters: int
    n_threads: int
    shared_bytes: int
    facts: Facts


def version() -> str | None:
    """Return the version of Triton; None if it is not installed."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None


@lru_cache(maxsize=1)
def is_installed() -> bool:
    """Return True if kernels can be compiled here."""
    return util.find_spec("triton") is not None


def supports(arch: str) -> bool:
    """Return True for an architecture that kernels can be compiled for, such as ``sm_90``."""
    return is_installed() and arch in (*ARCHITECTURES, *_EXACT)


def number_of(arch: str) -> int:
    """Return the number of an architecture; 0 for none."""
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    return int(match[1]) if match else 0


@lru_cache(maxsize=64)
def compile_kernel(kernel: Kernel, arch: str) -> Binary:
    """Compile a kernel.

    Args:
        arch: Architecture, such as ``sm_90``.

    Raises:
        RequestError: If Triton is not installed.
        WorkError: If it refuses the kernel; the message says why.
    """
    stages = _compile(kernel, number_of(arch))
    ptx, code, options = stages["ptx"], stages["cubin"], stages["options"]
    entry = ptx[ptx.index(".entry") :].partition(")")[0]
    return Binary(
        name=kernel.name,
        code=code,
        n_parameters=entry.count(".param"),
        n_threads=32 * int(options["num_warps"]),
        shared_bytes=int(options["shared"]),
        facts=read(code, ptx),
    )


def print_ptx(kernel: Kernel, arch: str) -> str:
    """Return the PTX of a kernel; see :func:`compile_kernel`."""
    return str(_compile(kernel, number_of(arch))["ptx"])


def _compile(kernel: Kernel, architecture: int) -> dict[str, Any]:
    """Return the PTX, the binary, and what the compiler decided about it."""
    if not is_installed():
        raise RequestError(f"this kernel needs Triton: {install_command('triton')}")
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):  # Triton prints what its assembler refuses
            return _run_stages(kernel, architecture)
    except Exception as error:  # Triton's errors have no common class
        raise WorkError(f"Triton refuses the kernel: {summary(error, last=True)}") from error


def _run_stages(kernel: Kernel, architecture: int) -> dict[str, Any]:
    compiler = importlib.import_module("triton.compiler.compiler")
    ir = importlib.import_module("triton._C.libtriton").ir
    knobs = importlib.import_module("triton.knobs")
    gpu = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", architecture, 32)
    backend = compiler.make_backend(gpu)
    options = backend.parse_options(
        {"num_warps": kernel.n_warps, "num_stages": kernel.n_stages, "sanitize_overflow": False}
    )
    pointers = [*kernel.pointers, *([(COUNTERS, "int32")] if kernel.n_counters else [])]
    source = compiler.ASTSource(
        fn=programs.load(kernel, waits=architecture >= _WAITING),
        signature={name: f"*{ELEMENTS[dtype]}" for name, dtype in pointers},
        constexprs={},
        attrs={(number,): _ALIGNED for number in range(len(pointers))},
    )
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    made: dict[str, Any] = {"options": {"target": gpu, **vars(options)}}
    # The names of files and lines of the source would be part of the binary.
    with knobs.compilation.scope():
        knobs.compilation.disable_line_info = True
        module = source.make_ir(gpu, options, functions, backend.get_module_map(), context)
        for name, run in stages.items():
            module = run(module, made["options"])
            if name == "ptx":
                module = _without_pairs(module)
                if kernel.n_counters:
                    module = _with_counters(module, kernel)
            made[name] = module
    return made


def _without_pairs(ptx: str) -> str:
    """Return the source of a kernel with two operations in place of one on a pair of numbers.

    ptxas 12.8 to 13.0 adds zero in place of a constant that is added to two pairs, or twice to one
    (triton-lang/triton, issue 11581): windows then read what lies beyond their image.
    """
    apart = (
        r"{ .reg .b16 %pair<4>; mov.b32 {%pair0, %pair1}, \4; mov.b32 {%pair2, %pair3}, \5; "
        r"\1.\2 %pair0, %pair0, %pair2; \1.\2 %pair1, %pair1, %pair3; "
        r"mov.b32 \3, {%pair0, %pair1}; }"
    )
    without = _PAIRS.sub(apart, ptx)
    if re.search(r"add\.[su]16x2", without):
        raise ValueError("LLVM adds pairs of numbers in an unknown form")
    return without


def _with_counters(ptx: str, kernel: Kernel) -> str:
    """Return the source of a kernel whose counters are a variable in place of its last pointer.

    Variables are zero when a binary is loaded.
    """
    variable = f"{kernel.name}_{COUNTERS}"
    parameter = re.escape(f"[{kernel.name}_param_{len(kernel.pointers)}]")
    ptx, n_loads = re.subn(
        rf"ld\.param\.b64(\s+%rd\d+), {parameter};", rf"mov.b64\1, {variable};", ptx
    )
    if not n_loads:
        raise ValueError("Triton loads the address of the counters in an unknown form")
    declared = f".global .align 16 .b32 {variable}[{kernel.n_counters}];\n"
    return ptx.replace(".visible .entry", f"{declared}.visible .entry", 1)
