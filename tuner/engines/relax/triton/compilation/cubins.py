"""Facts of a binary for a GPU: registers, spills, shared memory, instructions.

A binary is an ELF file; its attributes are those that ``cuobjdump -elf`` prints ("CUDA Binary
Utilities", section "nvdisasm").
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

# Attributes with a number for each function, and the form of such entries.
_FRAME_SIZE, _REGISTERS, _PER_FUNCTION = 0x11, 0x2F, 0x04
# Entries of other forms have their value in place of a size.
_IN_PLACE = (0x01, 0x02, 0x03)


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
