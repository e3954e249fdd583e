"""Stub driver, runtime and NVML of an absent GPU, for processes of tests."""

import subprocess
from pathlib import Path

from tuner.engines.linker import find_compiler


def build(folder: Path) -> Path:
    """Compile stub CUDA drivers into a folder for LD_LIBRARY_PATH."""
    versions = folder / "versions"
    versions.write_text("libcudart.so.13 { global: cuda*; };")
    # The runtime uses the state of the driver.
    runtime = [
        "-DRUNTIME",
        f"-Wl,--version-script={versions},-soname,libcudart.so.13",
        f"-L{folder}",
        "-l:libcuda.so.1",
    ]
    for name, source, options in (
        ("libcuda.so.1", "driver.c", ["-Wl,-soname,libcuda.so.1"]),
        ("libcudart.so.13", "driver.c", runtime),
        ("libnvidia-ml.so.1", "nvml.c", []),
    ):
        path = str(Path(__file__).with_name(source))
        output = ["-o", str(folder / name), path]
        command = [find_compiler(), "-shared", "-fPIC", "-Wall", *output, *options]
        subprocess.run(command, check=True)
    return folder
