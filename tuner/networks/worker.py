"""Worker functions that load a model, write its cleaned file, and describe its inputs."""

from collections.abc import Mapping
from pathlib import Path

from tuner.engines.base import ModelFile
from tuner.networks.base import LoadedModel, ModelFacts
from tuner.networks.load import find_dynamic_dimensions, load_network
from tuner.networks.originals import source_of
from tuner.networks.shapes import DynamicDimension


def load_model(
    reference: str,
    inputs: Mapping[str, tuple[int, ...]],
    random_weights: int | None,
    folder: str,
    alone: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> LoadedModel:
    """Load a model and write its cleaned bytes to ``folder`` under its hash.

    Raises:
        ModelError: See :func:`tuner.networks.load.load_network`.
    """
    network = load_network(
        reference, inputs, sizes=sizes, random_weights=random_weights, alone=alone
    )
    path = Path(folder) / f"{network.sha256}.{network.format}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(network.model)
    return LoadedModel(
        name=network.name,
        sha256=network.sha256,
        file=ModelFile(
            str(path),
            network.format,
            {name: (spec.shape, spec.dtype) for name, spec in network.inputs.items()},
        ),
        outputs={name: (spec.shape, spec.dtype) for name, spec in network.outputs.items()},
        notes=network.notes,
        source=source_of(reference, random_weights),
        values=network.values,
        tail=network.tail,
        limits=network.limits,
    )


def read_dimensions(reference: str, alone: bool) -> tuple[DynamicDimension, ...]:
    """Return the dynamic dimensions of a model; see :func:`find_dynamic_dimensions`."""
    return find_dynamic_dimensions(reference, alone=alone)


def describe_inputs(file: ModelFile) -> ModelFacts:
    """Find the values that the inputs of a cleaned model may take."""
    if file.format == "pt2":
        from tuner.networks.torch.torch_values import describe_pt2

        return describe_pt2(file.path)
    import onnx

    from tuner.networks.onnx.inputs.input_values import describe_onnx
    from tuner.networks.onnx.tail import with_tail

    return describe_onnx(with_tail(onnx.load(file.path)))


def write_tail(file: ModelFile, path: str) -> None:
    """Write the tail of a cleaned model as a file of its own."""
    import onnx

    from tuner.networks.onnx.tail import tail_of

    Path(path).write_bytes(tail_of(onnx.load(file.path)))
