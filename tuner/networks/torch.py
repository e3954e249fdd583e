"""Reading of torch.export archives, which needs the optional torch."""

import logging
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.errors import ModelError, install_command, summary
from tuner.networks.base import Network, TensorSpec, network_hash
from tuner.networks.shapes import Dims, fix_shapes


def load(path: Path, inputs: Mapping[str, tuple[int, ...]]) -> Network:
    """Load a ``.pt2`` file; the bytes of the network are those of the file.

    Args:
        path: An existing file.
        inputs: Shapes from the user, which must agree with the program's.

    Raises:
        ModelError: If torch is not installed, the file is not an exported program, or the program
            has dynamic shapes, inputs that are not tensors, or other shapes than ``inputs``.
    """
    if not zipfile.is_zipfile(path):
        raise ModelError(
            f"{str(path)!r} is not a torch.export archive, or is cut off: "
            "write it with torch.export.save",
            code="damaged-file",
        )
    data = path.read_bytes()
    program = _read(path)
    declared = _values(program, program.graph_signature.user_inputs, "input")
    dynamic = [name for name, (dims, _) in declared.items() if _is_dynamic(dims)]
    if dynamic:
        shown = ", ".join(f"{name!r} {declared[name][0]}" for name in dynamic)
        raise ModelError(
            f"{str(path)!r} has dynamic inputs ({shown}), which cannot be fixed afterwards: "
            "export it again without dynamic_shapes",
            code="dynamic-program",
        )
    shapes = fix_shapes({name: dims for name, (dims, _) in declared.items()}, inputs)
    specs = {name: TensorSpec(shapes[name], dtype) for name, (_, dtype) in declared.items()}
    outputs = {
        name: TensorSpec(tuple(int(dim) for dim in dims or ()), dtype)
        for name, (dims, dtype) in _values(
            program, program.graph_signature.user_outputs, "output"
        ).items()
    }
    return Network(path.stem, "pt2", data, network_hash(data, specs), specs, outputs, ())


def _read(path: Path) -> Any:
    try:
        import torch
    except ImportError as error:
        raise ModelError(
            f"reading .pt2 needs the extra torch: {install_command('torch')}", code="torch-missing"
        ) from error
    # torch logs a traceback before it raises.
    logger = logging.getLogger("torch.export")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        return torch.export.load(path)
    # torch documents no exceptions for archives of other versions.
    except Exception as error:
        raise ModelError(
            f"torch {torch.__version__} cannot load {str(path)!r}: write it with torch.export.save "
            f"of this version ({summary(error, max_chars=200)})",
            code="torch-version",
        ) from error
    finally:
        logger.setLevel(level)


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


def _is_dynamic(dims: Dims) -> bool:
    return dims is None or any(isinstance(dim, str) for dim in dims)
