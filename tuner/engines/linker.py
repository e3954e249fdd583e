"""The linkers and the compiler driver of this machine."""

import platform
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from tuner.errors import WorkError
from tuner.library.processors import machine_name, this_machine

#: Machines by "e_machine" in the header of an object file (System V ABI).
MACHINES = {3: "i686", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_SYSTEMS = {"arm": "linux-gnueabihf"}


def link_shared(objects: list[Path], out: Path, options: tuple[str, ...] = ()) -> None:
    """Link object files to a shared library, three times as fast as a compiler driver would.

    Raises:
        WorkError: If the linker fails, or none is installed for the machine of the objects.
    """
    linker = find_linker(machine_of(objects[0]))
    arguments = out.with_name(f"{out.name}.args")
    words = ["-shared", "-o", str(out), *options, *map(str, objects)]
    escaped = (word.replace("\\", "\\\\").replace('"', '\\"') for word in words)
    arguments.write_text("\n".join(f'"{word}"' for word in escaped))
    done = subprocess.run([linker, f"@{arguments}"], capture_output=True, check=False)
    if done.returncode:
        output = done.stderr.decode(errors="replace").strip()[-500:]
        raise WorkError(f"linking {out.name} failed: {output}")
    arguments.unlink()


@lru_cache(maxsize=8)
def find_linker(machine: str) -> str:
    """Return the linker for a machine, given by the first word of a triple.

    Raises:
        WorkError: If it is not installed; the message names the package.
    """
    machine = machine_name(machine)
    if machine == this_machine():
        return _first_of("linker", ("ld",), "apt install gcc")
    prefix = _cross_prefix(machine)
    # LLVM's linker supports every machine and reads it from the objects.
    names, remedy = (f"{prefix}-ld", "ld.lld"), f"apt install binutils-{prefix}, or lld"
    return _first_of("linker", names, remedy, machine)


def _first_of(tool: str, names: tuple[str, ...], remedy: str, machine: str = "this machine") -> str:
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        raise WorkError(f"no {tool} ({' or '.join(names)}) for {machine} was found; {remedy}")
    return path


def _cross_prefix(machine: str) -> str:
    return f"{machine}-{_SYSTEMS.get(machine, 'linux-gnu')}"


@lru_cache(maxsize=1)
def linker_version() -> str:
    """Return the version line of the linker; empty if it is not installed."""
    try:
        done = subprocess.run(["ld", "--version"], capture_output=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.decode(errors="replace").partition("\n")[0]


def find_compiler(machine: str = platform.machine()) -> str:
    """Return the C compiler for a machine, given by the first word of a triple.

    Raises:
        WorkError: If it is not installed; the message names the package.
    """
    machine = machine_name(machine)
    if machine == this_machine():
        return _first_of("C compiler", ("cc", "gcc", "clang"), "apt install gcc")
    prefix = _cross_prefix(machine)
    return _first_of("C compiler", (f"{prefix}-gcc",), f"apt install gcc-{prefix}", machine)


def compile_c(source: str, machine: str, out: Path) -> None:
    """Compile C into an object file of position-independent code.

    Args:
        source: The program.
        machine: Machine to compile for, the first word of a triple.
        out: Object file to write.

    Raises:
        WorkError: If no C compiler for the machine is installed, or it fails.
    """
    # Without a compiler driver, the linker has no library of atomic operations.
    options = ["-mno-outline-atomics"] if machine_name(machine) == "aarch64" else []
    command = [
        find_compiler(machine),
        *options,
        "-O2",
        "-fPIC",
        "-c",
        "-x",
        "c",
        "-",
        "-o",
        str(out),
    ]
    done = subprocess.run(command, input=source.encode(), capture_output=True, check=False)
    if done.returncode:
        output = done.stderr.decode(errors="replace").strip()[-500:]
        raise WorkError(f"{out.name} cannot be compiled: {output}")


def machine_of(path: Path) -> str:
    """Return the machine of an object file; that of this process if the file has none."""
    with path.open("rb") as stream:
        header = stream.read(20)
    if header[:4] != b"\x7fELF":
        return platform.machine()
    return MACHINES.get(int.from_bytes(header[18:20], "little"), platform.machine())
