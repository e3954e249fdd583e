"""The linker and the compiler driver of this machine."""

import shutil
import subprocess
from pathlib import Path

from tuner.errors import WorkError


def link_shared(objects: list[Path], out: Path, options: tuple[str, ...] = ()) -> None:
    """Link object files to a shared library; a compiler driver would take three times as long.

    Raises:
        WorkError: If the linker refuses.
    """
    arguments = out.with_name(f"{out.name}.args")
    words = ["-shared", "-o", str(out), *options, *map(str, objects)]
    arguments.write_text("\n".join(f'"{word}"' for word in words))
    done = subprocess.run(["ld", f"@{arguments}"], capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-500:]
        raise WorkError(f"linking {out.name} failed: {said}")
    arguments.unlink()


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
