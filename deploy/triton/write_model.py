"""Write a model folder of NVIDIA Triton Inference Server for a library.

    python -m deploy.triton.write_model LIBRARY FOLDER

FOLDER, a new one in the server's repository of models, gets the name of the model.
"""

import json
import shutil
import sys
from pathlib import Path

from tuner.errors import RequestError
from tuner.library import manifest

# Types of Triton by those of NumPy; its Python back end takes no others.
_TYPES = {
    **{f"float{n_bits}": f"TYPE_FP{n_bits}" for n_bits in (16, 32, 64)},
    **{f"int{n_bits}": f"TYPE_INT{n_bits}" for n_bits in (8, 16, 32, 64)},
    **{f"uint{n_bits}": f"TYPE_UINT{n_bits}" for n_bits in (8, 16, 32, 64)},
    "bool": "TYPE_BOOL",
}


def main(library: Path, folder: Path) -> None:
    """Write the folder: configuration, code and library.

    Raises:
        RequestError: If there is no library, or Triton lacks a type of it.
        FileExistsError: If the folder exists.
    """
    described = manifest.read(library)
    config = _config(folder.name, described)
    version = folder / "1"
    version.mkdir(parents=True, exist_ok=False)
    shutil.copytree(library, version / "network.lib")
    shutil.copy(Path(__file__).with_name("model.py"), version)
    (folder / "config.pbtxt").write_text(config)


def _config(name: str, described: manifest.Manifest) -> str:
    # The shapes of a request are whole: the first axis need not be a batch.
    lines = [f"name: {json.dumps(name)}", 'backend: "python"', "max_batch_size: 0"]
    for kind, tensors in (
        ("input", described.inputs),
        ("output", described.outputs_of(described.programs[0])),
    ):
        for tensor, (_, dtype) in tensors.items():
            if dtype not in _TYPES:
                raise RequestError(f"Triton takes no tensors of {dtype}, as {tensor!r} is")
            # Triton has no scalars: one has the shape (1,), also in its requests.
            dims = ", ".join(map(str, _dims(tensor, kind, described) or [1]))
            fields = f"name: {json.dumps(tensor)} data_type: {_TYPES[dtype]} dims: [ {dims} ]"
            lines.append(f"{kind} [ {{ {fields} }} ]")
    device = "KIND_GPU gpus: [ 0 ]" if '"cuda"' in described.target else "KIND_CPU"
    lines.append(f"instance_group [ {{ count: 1 kind: {device} }} ]")
    return "\n".join([*lines, ""])


def _dims(tensor: str, kind: str, described: manifest.Manifest) -> list[int]:
    """Return the sizes of a tensor, -1 where programs or calls differ."""
    names = described.buckets.names() if described.buckets else {}
    shapes = [
        (program.inputs if kind == "input" else described.outputs_of(program))[tensor][0]
        for program in described.programs
    ]
    return [
        -1 if (tensor, axis) in names or len(set(sizes)) > 1 else sizes[0]
        for axis, sizes in enumerate(zip(*shapes, strict=True))
    ]


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
