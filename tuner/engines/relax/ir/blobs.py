"""Modules inside a library in the binary format of TVM.

The layout is that of ``ProcessLibraryBin`` (tvm_ffi, library_module.cc) and, for device code, of
``CUDAModuleNode::SaveToBytes`` (TVM, cuda_module.cc): numbers have 64 bits, little endian; text,
bytes and lists start with their length.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import tvm

# Kind of the functions of the library itself, which import its device code.
_LIBRARY = "_lib"
_CUDA = "cuda"


@dataclass(frozen=True)
class DeviceModule:
    """Code for a GPU, and the table that TVM launches its kernels by.

    Attributes:
        form: ``"cuda"`` for source, ``"cubin"`` for a binary.
        table: Names, arguments and launch parameters of the kernels, as TVM stores them.
        code: Source or binary.
    """

    form: str
    table: bytes
    code: bytes

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Parse a CUDA module from the bytes that TVM stores."""
        reader = _Reader(content)
        form = reader.text()
        start = reader.position
        for _ in range(reader.number()):
            reader.skip_kernel()
        return cls(form, content[start : reader.position], reader.content())

    def dump(self) -> bytes:
        """Serialise the module to the bytes that TVM reads."""
        return _sized(self.form.encode()) + self.table + _sized(self.code)


@dataclass
class Blob:
    """The modules of a library and the import graph between them.

    Attributes:
        modules: Kind and content of each, the root first; the library itself has no content.
        imports: Indices of the imported modules, by module.
    """

    modules: list[tuple[str, bytes]]
    imports: list[list[int]]

    @classmethod
    def of(cls, module: tvm.runtime.Module) -> Self:
        """Return the blob that the export of a module would store."""
        packed = tvm.get_global_func("runtime.ModulePackImportsToTensor")(module)
        return cls.parse(packed.numpy().tobytes())

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Parse the blob of a library."""
        reader = _Reader(content)
        reader.number()
        ends = [reader.number() for _ in range(reader.number())]
        children = [reader.number() for _ in range(reader.number())]
        modules = []
        for _ in ends[1:]:
            kind = reader.text()
            modules.append((kind, b"" if kind == _LIBRARY else reader.content()))
        return cls(modules, [children[start:end] for start, end in pairwise(ends)])

    @property
    def devices(self) -> list[DeviceModule]:
        """Device code of the library."""
        return [DeviceModule.parse(content) for kind, content in self.modules if kind == _CUDA]

    def replace_devices(self, devices: Iterable[DeviceModule]) -> None:
        """Replace the device code that the functions import."""
        kept = [index for index, (kind, _) in enumerate(self.modules) if kind != _CUDA]
        self.imports = [
            [kept.index(child) for child in self.imports[index] if child in kept] for index in kept
        ]
        self.modules = [self.modules[index] for index in kept]
        library = [kind for kind, _ in self.modules].index(_LIBRARY)
        for device in devices:
            self.imports[library].append(len(self.modules))
            self.modules.append((_CUDA, device.dump()))
            self.imports.append([])

    def dump(self) -> bytes:
        """Serialise the blob to the bytes that TVM reads when it loads the library."""
        ends = [0]
        for children in self.imports:
            ends.append(ends[-1] + len(children))
        content = _numbers(ends) + _numbers(
            [child for children in self.imports for child in children]
        )
        for kind, stored in self.modules:
            content += _sized(kind.encode()) + (b"" if kind == _LIBRARY else _sized(stored))
        return _sized(content)


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self.position = 0

    def number(self) -> int:
        return int.from_bytes(self._take(8), "little")

    def content(self) -> bytes:
        return self._take(self.number())

    def text(self) -> str:
        return self.content().decode()

    def skip_kernel(self) -> None:
        """Skip a kernel: its name and FunctionInfo (name, dtypes, launch parameters, tags)."""
        self.content()
        self.content()
        self._take(4 * self.number())
        for _ in range(self.number()):
            self.content()
        self._take(4 * self.number())

    def _take(self, n_bytes: int) -> bytes:
        content = self._content[self.position : self.position + n_bytes]
        if len(content) < n_bytes:
            raise ValueError(f"a module ends {n_bytes - len(content)} bytes early")
        self.position += n_bytes
        return content


def _sized(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def _numbers(values: list[int]) -> bytes:
    return struct.pack(f"<Q{len(values)}Q", len(values), *values)
