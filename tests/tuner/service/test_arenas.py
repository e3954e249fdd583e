"""The threads of a service process share their memory."""

import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import ctypes, sys, threading
from tuner.service.arenas import limit_arenas

limit_arenas()
barrier, libc = threading.Barrier(8), ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p

def allocate():
    barrier.wait()
    libc.malloc(1000)
    barrier.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs the GNU C library")
@pytest.mark.parametrize(("variable", "n_arenas"), [(None, 2), ("5", 5)])
def test_threads_share_arenas(tmp_path: Path, variable: str | None, n_arenas: int) -> None:
    """Eight threads have two arenas, unless the operator says otherwise."""
    environ = {} if variable is None else {"MALLOC_ARENA_MAX": variable}
    file = tmp_path / "malloc.xml"

    subprocess.run([sys.executable, "-c", _SCRIPT, str(file)], env=environ, check=True)

    assert file.read_text().count("<heap nr=") == n_arenas
