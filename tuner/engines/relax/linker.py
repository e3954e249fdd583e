"""The linker and the compiler driver of this machine."""

import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from tuner.errors import WorkError


def link_shared(objects: list[Path], out: Path, options: tuple[str, ...] = ()) -> None:
    """Link object files to a shared library; a compiler driver would take three times as long.

    Raises:
        WorkError: If the linker refuses.
    """
    arguments = out.with_name(f"{out.name}.args")
    words = ["-shared", "-o", str(out), *options, *map(str, objects)]
    arguments.write_text("\n".join(map(_quoted, words)))
    try:
        done = subprocess.run(["ld", f"@{arguments}"], capture_output=True, check=False)
    except FileNotFoundError as error:
        raise WorkError("no linker (ld) was found; install one, e.g. apt install gcc") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-500:]
        raise WorkError(f"linking {out.name} failed: {said}")
    arguments.unlink()


def _quoted(word: str) -> str:
    """Quote a word as the linker reads its arguments from a file."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@lru_cache(maxsize=1)
def linker_version() -> str:
    """Return what the linker says of itself; empty if there is none."""
    try:
        done = subprocess.run(["ld", "--version"], capture_output=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.decode(errors="replace").partition("\n")[0]


def find_compiler() -> str:
    """Return the compiler driver to link libraries with.

    Raises:
        WorkError: If there is none.
    """
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name)
        if found:
            return found
    raise WorkError("no C compiler (cc, gcc or clang) was found; install one, e.g. apt install gcc")
