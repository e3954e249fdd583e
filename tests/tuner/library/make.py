"""A small library."""

from pathlib import Path

from tuner.library import manifest
from tuner.library.manifest import Manifest, SubgraphEntry


def described(**changes: object) -> Manifest:
    """A manifest with a tuned subgraph and a fallback."""
    values: dict[str, object] = {
        "network": "0" * 64,
        "model_name": "small",
        "target": '{"kind":"llvm"}',
        "device": {"name": "CPU", "n_cores": 2},
        "inputs": {"data": ((1, 3), "float32")},
        "outputs": ("y",),
        "subgraphs": (
            SubgraphEntry("dense[1x3]", "ab" * 8, 2, 7, 1e-3),
            SubgraphEntry("softmax[1x3]", "cd" * 8, 1, None, None),
        ),
        "files": {},
    }
    return Manifest(**{**values, **changes})  # type: ignore[arg-type]


def fill(folder: Path, content: bytes = b"code") -> None:
    """Write a library into an existing folder."""
    (folder / manifest.LIBRARY).write_bytes(content)
    files = {manifest.LIBRARY: manifest.sha256_of(folder / manifest.LIBRARY)}
    manifest.write(folder, described(files=files))
