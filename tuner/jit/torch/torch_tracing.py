"""Trace functions and modules of torch into programs that an engine imports."""

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

from tuner.errors import ModelError, summary
from tuner.jit.torch.torch_changes import Dependencies
from tuner.jit.torch.torch_signatures import Signature
from tuner.networks.torch.torch_random import is_mutable, is_random

# Modules that compute another function in training mode.
_TRAINING_MODULES = (
    nn.modules.dropout._DropoutNd,
    nn.modules.batchnorm._BatchNorm,
    nn.RReLU,
)

# While torch traces in one thread, it changes how modules are called in every thread.
_trace_lock = threading.RLock()
_thread = threading.local()


@contextmanager
def exclusive_tracing() -> Iterator[None]:
    """Keep other threads from tracing; in this one, jitted functions run as plain functions."""
    with _trace_lock:
        before = is_tracing()
        _thread.is_tracing = True
        try:
            yield
        finally:
            _thread.is_tracing = before


def is_tracing() -> bool:
    """Return whether this thread is within :func:`exclusive_tracing`."""
    return getattr(_thread, "is_tracing", False)


@dataclass(frozen=True)
class OutputStructure:
    """The structure of a function's result, in which a program returns only the tensors.

    Attributes:
        leaves: The result, flat: None in place of each tensor, any other value in a tuple.
        structure: Nesting of the result, as pytree describes it.
        specs: Shape and dtype of each tensor.
    """

    leaves: tuple[tuple[Any] | None, ...]
    structure: Any
    specs: tuple[tuple[Any, Any], ...]

    def assemble(self, tensors: Sequence[Any]) -> Any:
        """Return the result of the function, with these tensors."""
        left = iter(tensors)
        filled = [next(left) if leaf is None else leaf[0] for leaf in self.leaves]
        return pytree.tree_unflatten(filled, self.structure)

    @property
    def is_tensor(self) -> bool:
        """True if the function returns a single tensor."""
        return bool(self.structure.is_leaf())


@dataclass(frozen=True)
class TracedProgram:
    """A program in memory, and the structure of its result."""

    program: Any
    outputs: OutputStructure

    def write(self, folder: Path) -> Path:
        """Write the program to a file, with the present weights.

        The same function with the same weights gives the same bytes in any process.
        """
        path = folder / "function.pt2"
        with _no_warnings():
            torch.export.save(self.program, path)
        return path


def trace(
    function: Callable[..., Any], dependencies: Dependencies, signature: Signature
) -> TracedProgram:
    """Export a function for one signature.

    Raises:
        ModelError: If torch cannot export it, or a library cannot compute it.
    """
    _check_modules(dependencies, signature.device)
    structures: list[OutputStructure] = []
    root = _Root(function, dependencies, signature, structures.append)
    program = _export(root, signature.examples())
    if not structures[-1].specs:
        raise ModelError("the function returns no tensor", code="not-a-tensor")
    _check_effects(program)
    for node in program.graph.nodes:
        # Without source locations, which would make a new network of an edited file.
        node.meta = {key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta}
    if signature.on_gpu:
        # The workers that read it need no GPU, and the target decides where it runs.
        program = move_to_device_pass(program, "cpu")
    return TracedProgram(program, structures[-1])


def _check_modules(dependencies: Dependencies, device: Any) -> None:
    """Check that modules are on the device of the arguments, and compute a fixed function.

    Raises:
        ModelError: If one does not; the message names it.
    """
    for root in dependencies.modules:
        for tensor in (*root.parameters(), *root.buffers()):
            if tensor.device != device:
                raise ModelError(
                    f"{type(root).__name__} is on device {tensor.device}, and its arguments are on "
                    f"{device}: move it there",
                    code="torch-export",
                )
        for name, module in root.named_modules():
            if module.training and isinstance(module, _TRAINING_MODULES):
                raise ModelError(
                    f"{type(module).__name__} {name!r} is in training mode, in which it draws "
                    "random numbers or changes its statistics: call .eval() on the module first",
                    code="training-mode",
                )


class _Root(nn.Module):  # type: ignore[misc]
    """A module that takes and returns only tensors.

    ``on_output`` receives the structure of the result, which cannot be kept in an attribute: torch
    reverts changes of attributes after a trace.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        dependencies: Dependencies,
        signature: Signature,
        on_output: Callable[[OutputStructure], None],
    ) -> None:
        super().__init__()
        # In a tuple, since torch would register a module as one more part.
        self._call = (function, on_output)
        # As parts of this module, their parameters are not copied as constants.
        self.parts = nn.ModuleList(dependencies.modules)
        self._signature = signature
        self.train(any(module.training for module in dependencies.modules))

    def train(self, mode: bool = True) -> "_Root":
        """Set the mode of this module alone; its parts keep theirs."""
        self.training = mode
        return self

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the function."""
        function, on_output = self._call
        args, named = self._signature.fill(tensors)
        leaves, structure = pytree.tree_flatten(function(*args, **named))
        returned = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        rest = tuple(None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves)
        specs = tuple((tuple(tensor.shape), tensor.dtype) for tensor in returned)
        on_output(OutputStructure(rest, structure, specs))
        return returned


def _export(root: _Root, examples: tuple[Any, ...]) -> Any:
    try:
        with exclusive_tracing(), _no_warnings(), torch.no_grad():
            program = torch.export.export(root, examples, strict=False)
    # Errors of the function itself, and of torch's limits.
    except Exception as error:
        raise ModelError(
            f"torch cannot export the function: {summary(error)}", code="torch-export"
        ) from error
    return program


def _check_effects(program: Any) -> None:
    """Check that a program only computes its outputs from its inputs.

    Raises:
        ModelError: If it has another effect, which the message names.
    """
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    for node in calls:
        if is_random(node):
            raise ModelError(
                f"{node.target} draws random numbers, and a library cannot: "
                "call .eval() on the module, or draw outside of the function",
                code="random-operator",
            )
        if getattr(node.target, "__name__", "") == "batch_norm.default" and node.args[5]:
            raise ModelError(
                "a batch norm in training mode changes its statistics: call .eval() on the module",
                code="training-mode",
            )
    if any(is_mutable(node.target) for node in calls):
        with _no_warnings():
            signature = program.run_decompositions({}).graph_signature
        changed = [
            *signature.buffers_to_mutate.values(),
            *signature.user_inputs_to_mutate.values(),
            *getattr(signature, "parameters_to_mutate", {}).values(),
        ]
        if changed:
            raise ModelError(
                f"the function changes {changed[0]!r} in place; a library cannot",
                code="torch-export",
            )


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Suppress torch's warnings about itself, which users cannot act on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
