"""The file of a pack: a program of Python, its index, binaries and expected outputs."""

import io
import json
import zipfile
from collections.abc import Mapping
from importlib import resources
from typing import IO, Any

import numpy as np

from tuner.engines.packed import PackedSource
from tuner.engines.verification.comparison import digest
from tuner.packs.runner.contents import INDEX

# Elements of an output that are compared; the last ones, where tiles end, are always among them.
_N_SAMPLES, _N_LAST = 2048, 128
_MAIN = b"from tuner.packs.runner.command import main\n\nmain()\n"
# Packages that are empty in a pack, and modules that the runner and its compiler import.
_EMPTY = ("tuner", "tuner.engines.relax")
_MODULES = (
    "tuner.engines.__init__",
    "tuner.engines.cuda.__init__",
    "tuner.engines.cuda.graph_launches",
    "tuner.engines.packed",
    "tuner.engines.relax.triton.__init__",
    "tuner.engines.relax.triton.compilation.__init__",
    "tuner.engines.relax.triton.compilation.compiler",
    "tuner.engines.relax.triton.compilation.packed_programs",
    "tuner.engines.relax.triton.programs",
    "tuner.engines.verification.__init__",
    "tuner.engines.verification.comparison",
    "tuner.engines.verification.dtypes",
    "tuner.engines.verification.input_sets",
    "tuner.errors",
    "tuner.packs.__init__",
    "tuner.packs.launch_plans",
    "tuner.packs.result_lines",
    "tuner.packs.runner.__init__",
    "tuner.packs.runner.command",
    "tuner.packs.runner.compilers",
    "tuner.packs.runner.contents",
    "tuner.packs.runner.driver",
    "tuner.packs.runner.finals",
    "tuner.packs.runner.measure",
    "tuner.packs.runner.network",
    "tuner.packs.runner.nvml",
    "tuner.packs.runner.service",
)

Array = np.ndarray[Any, Any]


class PackWriter:
    """A pack that is written workload by workload, and last its index."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._archive = zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED)
        self._archive.writestr("__main__.py", _MAIN)
        for package in _EMPTY:
            self._archive.writestr(f"{package.replace('.', '/')}/__init__.py", b"")
        for module in _MODULES:
            package, _, name = module.rpartition(".")
            source = resources.files(package).joinpath(f"{name}.py").read_bytes()
            self._archive.writestr(f"{module.replace('.', '/')}.py", source)

    def add(self, workload: str, code: bytes, arrays: Mapping[str, Array]) -> None:
        """Add the binaries and expected outputs of a workload.

        Args:
            workload: Hash of the workload.
            code: Binaries of its kernels one after the other; equal parts of them are stored once.
            arrays: Arrays by :func:`sample`.
        """
        stream = io.BytesIO()
        np.savez(stream, **arrays)  # type: ignore[arg-type]
        self._archive.writestr(f"workloads/{workload}.bin", code, zipfile.ZIP_LZMA)
        self._archive.writestr(f"workloads/{workload}.npz", stream.getvalue())

    def add_sources(self, workload: str, sources: Mapping[str, PackedSource]) -> None:
        """Add the sources of candidates that are not compiled, by name, the fastest first."""
        programs = {name: [each.program, each.max_shared_bytes] for name, each in sources.items()}
        content = json.dumps(programs)
        self._archive.writestr(f"sources/{workload}.json", content, zipfile.ZIP_LZMA)

    def add_network(self, number: int, content: bytes) -> None:
        """Add the weights of a network that are not drawn, and its other binaries."""
        self._archive.writestr(f"networks/{number}.bin", content, zipfile.ZIP_LZMA)

    def close(self, index: Mapping[str, Any]) -> None:
        """Add the index and complete the file."""
        self._archive.writestr(INDEX, json.dumps(index))
        self._archive.close()


def sample(number: int, content: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return a reference as a pack has it: samples of what a kernel must compute.

    Positions are drawn among those that are checked. Of exact outputs there is a digest, too.

    Args:
        number: Number of the reference among those of its workload.
        content: Reference by an engine.

    Returns:
        Its entry in the index, and its arrays by name.
    """
    # Not above: the API, which has no interpreter, writes packs without candidates.
    from tuner.engines.verification import references

    reference = references.load(io.BytesIO(content))
    arrays: dict[str, Array] = {}
    digests: list[int | None] = []
    for output, expected in enumerate(reference.outputs):
        values = expected.values.reshape(-1)
        bounds = expected.bounds
        flat = (
            None if bounds is None else np.broadcast_to(bounds, expected.values.shape).reshape(-1)
        )
        checked = np.arange(values.size) if flat is None else np.flatnonzero(np.isfinite(flat))
        random = np.random.default_rng(output)
        drawn = checked[random.integers(0, max(checked.size, 1), min(_N_SAMPLES, checked.size))]
        positions = np.unique(np.concatenate([drawn, checked[-_N_LAST:]]))
        end = f"{number}_{output}"
        arrays[f"positions_{end}"], arrays[f"values_{end}"] = positions, values[positions]
        if flat is not None:
            arrays[f"bounds_{end}"] = flat[positions]
        is_exact = flat is None or not flat.any()
        digests.append(digest(expected.values, str(values.dtype)) if is_exact else None)
    entry = {
        "input_set": reference.input_set.dump(),
        "checksum": reference.checksum,
        "digests": digests,
    }
    return entry, arrays
