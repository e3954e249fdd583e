"""Reading of torch.export archives, which needs the optional torch."""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.errors import ModelError, install_command, summary
from tuner.networks import file_kinds
from tuner.networks.base import Network, TensorSpec, network_hash
from tuner.networks.shapes import Dims, fix_shapes, refuse_empty

# torch's text where no library has registered an operator.
_UNKNOWN = re.compile(r"failed to resolve torch\.ops\.([\w.]+)\.\w+ to an operator")
_MISSING = re.compile(r"No module named '([\w]+)")
_NO_SIZES: Mapping[str, int] = {}


def load(
    path: Path, inputs: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int] = _NO_SIZES
) -> Network:
    """Load a ``.pt2`` file; the network keeps its bytes.

    Args:
        path: An existing file.
        inputs: Shapes from the user, which must agree with the program's.
        sizes: Sizes of dynamic dimensions by name.

    Raises:
        ModelError: If torch is not installed, the file is not an exported program, or the program
            has inputs that are not tensors, or other shapes than those requested.
    """
    program = _read(path)
    data = path.read_bytes()
    declared = _declared(program)
    dims = {name: dims for name, (dims, _) in declared.items()}
    shapes = fix_shapes(dims, inputs, sizes)
    refuse_empty(shapes)
    specs = {name: TensorSpec(shapes[name], dtype) for name, (_, dtype) in declared.items()}
    notes: tuple[str, ...] = ()
    fixed = [name for name in shapes if shapes[name] != dims[name]]
    if fixed:
        program = fix_program(program, {name: spec.shape for name, spec in specs.items()})
        notes = tuple(f"fixed {name} to {'x'.join(map(str, shapes[name]))}" for name in fixed)
    for node in program.graph.nodes:
        shape = getattr(node.meta.get("val"), "shape", ())
        if any(not isinstance(dim, int) for dim in shape):
            raise ModelError(
                f"the shape of {node.name!r} depends on the data: export the program to ONNX, "
                "where such operators run after the library",
                code="data-dependent-shape",
            )
    outputs = {
        name: TensorSpec(tuple(int(dim) for dim in dims or ()), dtype)
        for name, (dims, dtype) in _values(
            program, program.graph_signature.user_outputs, "output"
        ).items()
    }
    from tuner.networks.torch.torch_limits import find_limits

    sha256, limits = network_hash(data, specs), find_limits(program)
    return Network(path.stem, "pt2", data, sha256, specs, outputs, notes, limits=limits)


def declared_inputs(path: Path) -> dict[str, Dims]:
    """Return the shape of every input as the program of a file declares it.

    Raises:
        ModelError: If the file cannot be loaded, or an input is not a tensor.
    """
    return {name: dims for name, (dims, _) in _declared(_read(path)).items()}


def fix_program(program: Any, shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """Export a program with dynamic dimensions again, with fixed ones.

    Args:
        program: The exported program.
        shapes: Shape of every input by name.

    Raises:
        ModelError: If torch refuses the shapes.
    """
    import torch

    dtypes = {name: dtype for name, (_, dtype) in _declared(program).items()}
    arguments = tuple(
        torch.zeros(shape, dtype=getattr(torch, dtypes[name])) for name, shape in shapes.items()
    )
    try:
        return torch.export.export(program.module(), arguments)
    # torch documents no exceptions for shapes outside of the ranges of a program.
    except Exception as error:
        shown = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise ModelError(
            f"torch cannot fix the dynamic dimensions at {shown}: {summary(error, max_chars=200)}",
            code="dynamic-program",
        ) from error


def is_dynamic(program: Any) -> bool:
    """Return whether an input of a program has a dynamic dimension."""
    declared = _values(program, program.graph_signature.user_inputs, "input")
    return any(isinstance(dim, str) for dims, _ in declared.values() for dim in dims or ())


def _read(path: Path) -> Any:
    other = file_kinds.describe(path)
    if other or not zipfile.is_zipfile(path):
        unknown = "is not a torch.export archive, or is cut off: write it with torch.export.save"
        raise ModelError(f"{str(path)!r} {other or unknown}", code="damaged-file")
    try:
        import torch
    except ImportError as error:
        raise ModelError(
            f"reading .pt2 needs the extra torch: {install_command('torch')}", code="torch-missing"
        ) from error
    from tuner.networks.torch.programs import LoadError, load_program

    try:
        return load_program(path)
    except LoadError as error:
        if lacking := _UNKNOWN.search(str(error)):
            raise ModelError(
                f"{str(path)!r} has the operator {lacking[1]}, which a library registers and torch "
                "lacks: export the program without it",
                code="unsupported-operator",
            ) from error
        if lacking := _MISSING.search(str(error)):
            raise ModelError(
                f"{str(path)!r} has tensors of the package {lacking[1]}, which is not installed: "
                "export the program with plain tensors",
                code="unsupported-operator",
            ) from error
        raise ModelError(
            f"torch {torch.__version__} cannot load {str(path)!r}: write it with torch.export.save "
            f"of this version ({summary(error, max_chars=200)})",
            code="torch-version",
        ) from error


def _values(program: Any, names: tuple[Any, ...], what: str) -> dict[str, tuple[Dims, str]]:
    """Return the dimensions and the dtype of graph values, with symbols for dynamic dimensions."""
    nodes = {node.name: node for node in program.graph.nodes}
    values: dict[str, tuple[Dims, str]] = {}
    for name in names:
        value: Any = nodes[name].meta.get("val") if name in nodes else None
        if not hasattr(value, "dtype"):
            raise ModelError(
                f"{what} {name!r} of the program is not a tensor: export without it",
                code="not-a-tensor",
            )
        dims = tuple(dim if isinstance(dim, int) else str(dim) for dim in value.shape)
        values[name] = (dims, str(value.dtype).removeprefix("torch."))
    return values


def _declared(program: Any) -> dict[str, tuple[Dims, str]]:
    """Return the dimensions and dtype of every input.

    Archives lose the names of dynamic dimensions, and their symbols differ from file to file: they
    are named by the first input that has them, as ``INPUT.AXIS``.
    """
    declared = _values(program, program.graph_signature.user_inputs, "input")
    names: dict[str, str] = {}
    for name, (dims, _) in declared.items():
        for axis, dim in enumerate(dims or ()):
            if isinstance(dim, str):
                names.setdefault(dim, f"{name}.{axis}")
    return {
        name: (tuple(names.get(str(dim), dim) for dim in dims or ()), dtype)
        for name, (dims, dtype) in declared.items()
    }
