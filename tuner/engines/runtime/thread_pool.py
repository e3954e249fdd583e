"""Threads of a library for the parallel loops of its kernels, see docs/decisions/0085.

The source is ``thread_pool.c``. TVM's own threads make a library slow beside other work: they wait
for each other without end, and are bound to cores where another process may run.
"""

from pathlib import Path

from tuner.engines.linker import compile_c, machine_of
from tuner.errors import WorkError

#: Version of the source, which is part of the key of a library in the build cache.
VERSION = 1
_SOURCE = Path(__file__).with_suffix(".c")
_OBJECT = "thread_pool.o"


def compile_pool(objects: list[Path], folder: Path) -> list[Path]:
    """Compile the threads for a library of CPU kernels.

    Args:
        objects: Objects of the library; the first one tells the machine.

    Returns:
        What to link beside the objects: the object file. Empty if no C compiler for the machine is
        installed, or it fails; TVM's threads then run the library.
    """
    out = folder / _OBJECT
    try:
        compile_c(_SOURCE.read_text(), machine_of(objects[0]), out)
    except WorkError:
        return []
    return [out]
