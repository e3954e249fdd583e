"""The wheel of the tuner, and a program that runs a library with it."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.docker.images import ROOT

_SOURCES = (
    "tuner",
    "api",
    "records",
    "scheduler",
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
)
# Loads the library that it is told, and writes the outputs for ones.
LOAD = """
import sys, numpy, tuner
library = tuner.load(sys.argv[1])
outputs = library({name: numpy.ones(*kind) for name, kind in library.inputs.items()})
numpy.savez(sys.argv[2], **outputs)
"""


def build_wheel(folder: Path) -> Path:
    """Build the wheel in a folder and return its file, which is not for Windows."""
    source = folder / "source"
    for name in _SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source / name)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*-py3-none-manylinux*.whl")
    return wheel
