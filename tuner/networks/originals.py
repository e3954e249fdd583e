"""Models as the user gave them, before cleaning: their identity, and files of them for peers."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import ModelError
from tuner.library.manifest import Inputs, InputValue, Source

if TYPE_CHECKING:
    from onnx import ModelProto

# Key under which ONNX names an external file; without it, all weights are in the model's file.
_EXTERNAL_KEY = b"location"
_NO_VALUES: Mapping[str, InputValue] = {}


@dataclass(frozen=True)
class Original:
    """A model that was not cleaned, on disk.

    Attributes:
        path: Path of the file: the user's own unless its weights were replaced.
        format: ``"onnx"`` or ``"pt2"``.
        description: The file for people, such as ``model.onnx`` or ``zoo:mlp, as generated``.
        inputs: Shape and dtype by name of every input that is not a constant of the file.
        symbols: Size by name of the dynamic dimensions.
    """

    path: str
    format: str
    description: str
    inputs: Inputs
    symbols: Mapping[str, int]


def source_of(reference: str, random_weights: int | None) -> Source:
    """Return the identity of a model that exists."""
    if reference.startswith("zoo:"):
        return Source(reference, random_weights=random_weights)
    return Source(Path(reference).name, content_hash(Path(reference)), random_weights)


def content_hash(path: Path) -> str:
    """Return the sha256 of a model's file, followed by its external files in order of their names.

    Raises:
        ModelError: If a file cannot be read.
    """
    try:
        data = path.read_bytes()
        digest = hashlib.sha256(data)
        if path.suffix.lower() == ".onnx" and _EXTERNAL_KEY in data:
            for name in _external_files(data):
                if not (path.parent / name).is_file():
                    raise ModelError(
                        f"{str(path)!r} keeps weights in {name!r}, which is not a file",
                        code="external-data",
                    )
                with (path.parent / name).open("rb") as stream:
                    while chunk := stream.read(1 << 20):
                        digest.update(chunk)
    except OSError as error:
        raise ModelError(
            f"cannot read {str(path)!r}: {error.strerror}", code="unreadable-file"
        ) from error
    return digest.hexdigest()


def write_original(
    reference: str,
    inputs: Inputs,
    random_weights: int | None,
    folder: str,
    values: Mapping[str, InputValue] = _NO_VALUES,
) -> Original:
    """Return the file of a model without cleaning it; a generated or changed one is written.

    Peers give a repeated output as often as the file names it, and a library once.

    Args:
        reference: Path of a model file, or ``zoo:NAME``.
        inputs: Shape and dtype by name of the inputs that do not become constants.
        random_weights: Seed of random weights; None keeps those of the model.
        folder: Folder for a file that is written.
        values: Values of inputs that become constants of the file, by name; shapes of those
            without elements.

    Raises:
        ModelError: If the model cannot be read.
    """
    if Path(reference).suffix.lower() == ".pt2":
        return Original(reference, "pt2", Path(reference).name, inputs, {})
    from tuner.networks.onnx.folding.fixed_values import as_text, fix_values
    from tuner.networks.onnx.repairs import drop_repeated_outputs

    zoo = reference.startswith("zoo:")
    model = _generate(reference) if zoo else _read(Path(reference))
    fix_values(model, values)
    is_changed = drop_repeated_outputs(model.graph) or bool(values) or random_weights is not None
    from tuner.networks.onnx.cleaning import declared_inputs

    symbols = {
        dim: size
        for name, dims in declared_inputs(model).items()
        if name in inputs
        for dim, size in zip(dims or (), inputs[name][0], strict=False)
        if isinstance(dim, str) and dim != "?"
    }
    path, description = reference, reference if zoo else Path(reference).name
    if zoo or is_changed:
        description += ", as generated" if zoo else ", not cleaned"
        if random_weights is not None:
            from tuner.networks.weights import randomise_weights

            model = randomise_weights(model, random_weights)
            description += f", random weights of seed {random_weights}"
        description += "".join(f", {name}={as_text(value)}" for name, value in values.items())
        path = str(Path(folder) / "original.onnx")
        Path(path).write_bytes(model.SerializeToString())
    return Original(path, "onnx", description, inputs, symbols)


def _external_files(data: bytes) -> list[str]:
    import onnx
    from onnx.external_data_helper import uses_external_data

    from tuner.networks.onnx.onnx_file import tensors_within

    model = onnx.ModelProto.FromString(data)
    return sorted(
        {
            item.value
            for tensor in tensors_within(model)
            if uses_external_data(tensor)
            for item in tensor.external_data
            if item.key == "location"
        }
    )


def _generate(reference: str) -> "ModelProto":
    from tuner.networks.zoo import catalogue

    return catalogue.build(reference.removeprefix("zoo:"))


def _read(path: Path) -> "ModelProto":
    from tuner.networks.onnx import onnx_file

    return onnx_file.read(path)
