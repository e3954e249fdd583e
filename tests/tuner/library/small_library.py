"""Folders of small libraries."""

from pathlib import Path

from tuner.library import manifest
from tuner.library.manifest import Manifest, Program, Source, SubgraphEntry, Weight


def described(**changes: object) -> Manifest:
    """Return a manifest with a tuned subgraph and a fallback."""
    values: dict[str, object] = {
        "model_name": "small",
        "target": '{"kind":"llvm"}',
        "device": {"name": "CPU", "n_cores": 2},
        "compiler": {"objects": 1},
        "outputs": ("y",),
        "programs": (
            Program(
                *("main_0", "0" * 64, {"data": ((1, 3), "float32")}, (0,)),
                calls={"ab" * 8: 2, "cd" * 8: 1},
                outputs=(((1, 3), "float32"),),
            ),
        ),
        "weights": (Weight(0, 12, (3,), "float32"),),
        "subgraphs": (
            SubgraphEntry("dense[1x3]", "ab" * 8, 2, 7, 1e-3),
            SubgraphEntry("softmax[1x3]", "cd" * 8, 1, None, None),
        ),
        "files": {},
        "engine": "tuner.engines.relax.worker",
        "source": Source("net.onnx"),
        "pipeline": "",
    }
    return Manifest(**{**values, **changes})  # type: ignore[arg-type]


def fill(folder: Path, content: bytes = b"code") -> None:
    """Write a library into an existing folder."""
    (folder / manifest.LIBRARY).write_bytes(content)
    files = {manifest.LIBRARY: manifest.sha256_of(folder / manifest.LIBRARY)}
    manifest.write(folder, described(files=files))
