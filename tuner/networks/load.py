"""Loading of a model reference: a file or a zoo network."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import ModelError, described
from tuner.networks.base import Network
from tuner.networks.shapes import DynamicDimension, dynamic_dimensions

_EXPECTED = "expected a .onnx or .pt2 file, or zoo:NAME"


@dataclass(frozen=True)
class _Shapes:
    """Shapes for inputs by name, and sizes of dynamic dimensions by name."""

    inputs: dict[str, tuple[int, ...]]
    sizes: dict[str, int]


def load_network(
    reference: str,
    inputs: Mapping[str, tuple[int, ...]] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    random_weights: int | None = None,
    alone: bool = False,
) -> Network:
    """Load a model and fix its shapes.

    Args:
        reference: Path of a ``.onnx`` or ``.pt2`` file, or ``zoo:NAME?option=value&...``.
        inputs: Shapes for inputs with dynamic dimensions, by input name.
        sizes: Sizes of dynamic dimensions, by name.
        random_weights: Seed of random weights that replace those of an ONNX model; None keeps them.
        alone: True for an untrusted upload, which must be ONNX and must not read other files.

    Raises:
        ModelError: If the model does not exist, or it cannot be read or its shapes fixed; one line
            with the problem and its remedy.
    """
    if random_weights is not None and random_weights < 0:
        raise ModelError(
            f"the seed of random weights must be at least 0, got {random_weights}",
            code="random-weights",
        )
    shapes = _Shapes(dict(inputs or {}), dict(sizes or {}))
    # A file of an odd form can make any library fail that reads, checks or simplifies it.
    with described(lambda reason: _unexpected(reference, reason)):
        return _load(reference, shapes, random_weights, alone=alone)


def _load(reference: str, shapes: _Shapes, random_weights: int | None, *, alone: bool) -> Network:
    if reference.startswith("zoo:"):
        return _load_zoo(reference.removeprefix("zoo:"), shapes, random_weights)
    path = _existing_file(reference)
    if path.suffix.lower() == ".onnx":
        from tuner.networks.onnx import inference, onnx_file

        model = onnx_file.read(path, alone=alone)
        with described(
            lambda reason: inference.find_fault(model) or _unexpected(reference, reason)
        ):
            from tuner.networks import weights
            from tuner.networks.onnx import cleaning

            notes: tuple[str, ...] = ()
            if random_weights is not None:
                model = weights.randomise_weights(model, random_weights)
                notes = (f"weights replaced by random ones (seed {random_weights})",)
            elif weights.is_degenerate(model):
                notes = (
                    "weights are placeholders (constant); "
                    "use random weights to make output checks meaningful",
                )
            return cleaning.clean(
                model, shapes.inputs, name=path.stem, notes=notes, sizes=shapes.sizes
            )
    if alone:
        raise ModelError(
            f"{str(path)!r} is not a .onnx file; upload an ONNX model", code="unknown-format"
        )
    if path.suffix.lower() == ".pt2":
        from tuner.networks.torch import archives

        if random_weights is not None:
            raise ModelError(
                f"{path}: random weights are supported for ONNX models only", code="random-weights"
            )
        return archives.load(path, shapes.inputs, shapes.sizes)
    raise _unknown_format(path)


def _unknown_format(path: Path) -> ModelError:
    from tuner.networks import file_kinds

    kind = file_kinds.describe(path)
    known = f"{str(path)!r} {kind}" if kind else f"cannot tell what {str(path)!r} is"
    return ModelError(f"{known}; {_EXPECTED}", code="unknown-format")


def find_dynamic_dimensions(reference: str, *, alone: bool = False) -> tuple[DynamicDimension, ...]:
    """Return the dynamic dimensions of a model; a zoo network has none.

    Raises:
        ModelError: If the model does not exist or cannot be read.
    """
    if reference.startswith("zoo:"):
        return ()
    path = _existing_file(reference)
    with described(lambda reason: _unexpected(reference, reason)):
        if path.suffix.lower() == ".pt2" and not alone:
            from tuner.networks.torch import archives

            return dynamic_dimensions(archives.declared_inputs(path))
        if path.suffix.lower() != ".onnx":
            raise _unknown_format(path)
        from tuner.networks.onnx import cleaning, onnx_file

        return dynamic_dimensions(cleaning.declared_inputs(onnx_file.read(path, alone=alone)))


def _unexpected(reference: str, reason: str) -> ModelError:
    return ModelError(
        f"{reference} cannot be cleaned{reason}; export it again, with another opset if it stays "
        "the same",
        code="not-loaded",
    )


def _existing_file(reference: str) -> Path:
    if not reference:
        raise ModelError(f"the name of the model is empty: {_EXPECTED}", code="no-model")
    path = Path(reference)
    try:
        if path.is_dir():
            raise ModelError(f"{reference!r} is a directory: {_EXPECTED}", code="no-model")
        if not path.exists():
            raise ModelError(f"no such file: {reference!r}{_zoo_hint(reference)}", code="no-model")
        if path.stat().st_size == 0:
            raise ModelError(
                f"{reference!r} is empty: export or download the model again", code="damaged-file"
            )
    except OSError as error:
        raise ModelError(
            f"cannot read {reference!r}: {error.strerror}", code="unreadable-file"
        ) from error
    return path


def _zoo_hint(reference: str) -> str:
    from tuner.networks.zoo import catalogue

    return f"; did you mean zoo:{reference}?" if reference in catalogue.ENTRIES else ""


def _load_zoo(query: str, shapes: _Shapes, seed: int | None) -> Network:
    from tuner.networks import weights
    from tuner.networks.onnx import cleaning
    from tuner.networks.zoo import catalogue

    model = catalogue.build(query)
    if shapes.inputs or shapes.sizes:
        raise ModelError(
            f"zoo:{query} does not take input shapes: set its shape with ?batch=N&image=N",
            field="input" if shapes.inputs else "bucket",
            code="input-shape",
        )
    notes: tuple[str, ...] = ("zoo network with random weights",)
    if seed is not None:
        model = weights.randomise_weights(model, seed)
        notes = (f"zoo network with random weights (seed {seed})",)
    return cleaning.clean(model, name=query, notes=notes)
