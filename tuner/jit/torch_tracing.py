"""Functions and modules of torch to programs that an engine imports."""

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tuner.errors import ModelError, summary
from tuner.jit.torch_signatures import Signature
from tuner.jit.torch_watching import Sources

# Modules that compute something else in training.
_TRAINING = (
    nn.modules.dropout._DropoutNd,
    nn.modules.batchnorm._BatchNorm,
    nn.RReLU,
)

# While torch traces, every module of the process is called another way, in every thread.
_ONE_AT_A_TIME = threading.RLock()
_here = threading.local()


@contextmanager
def alone() -> Iterator[None]:
    """Let no other thread trace; jitted functions that this one calls call their functions."""
    with _ONE_AT_A_TIME:
        before = is_inside()
        _here.inside = True
        try:
            yield
        finally:
            _here.inside = before


def is_inside() -> bool:
    """Whether this thread is within :func:`alone`."""
    return getattr(_here, "inside", False)


@dataclass(frozen=True)
class Outputs:
    """How the tensors that a program returns make up what the function returns.

    Attributes:
        leaves: What was returned, flat: None where a tensor was, else a value in a tuple.
        structure: How it was nested.
        specs: Shape and dtype of each tensor.
    """

    leaves: tuple[tuple[Any] | None, ...]
    structure: Any
    specs: tuple[tuple[Any, Any], ...]

    def assemble(self, tensors: Sequence[Any]) -> Any:
        """Return what the function returns."""
        left = iter(tensors)
        filled = [next(left) if leaf is None else leaf[0] for leaf in self.leaves]
        return pytree.tree_unflatten(filled, self.structure)

    @property
    def is_tensor(self) -> bool:
        """Whether the function returns one tensor."""
        return bool(self.structure.is_leaf())


@dataclass(frozen=True)
class Traced:
    """A program in memory, and what it returns."""

    program: Any
    outputs: Outputs

    def write(self, folder: Path) -> Path:
        """Write the program to a file; weights are those of now.

        The same function with the same weights gives the same bytes in any process.
        """
        path = folder / "function.pt2"
        with _silence():
            torch.export.save(self.program, path)
        return path


def trace(function: Callable[..., Any], sources: Sources, signature: Signature) -> Traced:
    """Export a function for one signature.

    Raises:
        ModelError: If it cannot be exported, or does what a library cannot.
    """
    check_mode(sources)
    told: list[Outputs] = []
    program = _export(_Root(function, sources, signature, told.append), signature.examples())
    if not told[-1].specs:
        raise ModelError("the function returns no tensor")
    _check_effects(program)
    for node in program.graph.nodes:
        # Where in which file something was called would make an edited file a new network.
        node.meta = {key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta}
    return Traced(program, told[-1])


def check_mode(sources: Sources) -> None:
    """Refuse modules that are not on the CPU, or behave in training as no library can.

    Raises:
        ModelError: If there is one; it is named.
    """
    for root in sources.modules:
        for tensor in (*root.parameters(), *root.buffers()):
            if not tensor.is_cpu:
                raise ModelError(
                    f"{type(root).__name__} is on device {tensor.device}: move it to the CPU"
                )
        for name, module in root.named_modules():
            if module.training and isinstance(module, _TRAINING):
                raise ModelError(
                    f"{type(module).__name__} {name!r} is in training mode, in which it draws "
                    "random numbers or changes its statistics: call .eval() on the module first"
                )


class _Root(nn.Module):  # type: ignore[misc]
    """Takes and returns tensors only; ``tell`` hears what the function returned.

    Torch undoes what a trace does to attributes of modules: nothing can be noted there.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        sources: Sources,
        signature: Signature,
        tell: Callable[[Outputs], None],
    ) -> None:
        super().__init__()
        self._call = (function, tell)
        # Known to torch as parts of this module, their parameters are not copied as constants.
        self.parts = nn.ModuleList(sources.modules)
        self._signature = signature
        self.train(any(module.training for module in sources.modules))

    def train(self, mode: bool = True) -> "_Root":
        """Say which mode this module is in; its parts stay as they are."""
        self.training = mode
        return self

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the function."""
        args, named = self._signature.fill(tensors)
        leaves, structure = pytree.tree_flatten(self._call[0](*args, **named))
        returned = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        rest = tuple(None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves)
        specs = tuple((tuple(each.shape), each.dtype) for each in returned)
        self._call[1](Outputs(rest, structure, specs))
        return returned


def _export(root: _Root, examples: tuple[Any, ...]) -> Any:
    try:
        with alone(), _silence(), torch.no_grad():
            program = torch.export.export(root, examples, strict=False)
    # Whatever a function does while it is traced, and torch's own limits.
    except Exception as error:
        raise ModelError(f"torch cannot export the function: {summary(error)}") from error
    return program


def _check_effects(program: Any) -> None:
    """Refuse programs that do more than to compute their outputs from their inputs.

    Raises:
        ModelError: If this one does; what it does is named.
    """
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    for node in calls:
        if _is_random(node):
            raise ModelError(
                f"{node.target} draws random numbers, and a library returns the same each time: "
                "call .eval() on the module, or draw outside of the function"
            )
        if getattr(node.target, "__name__", "") == "batch_norm.default" and node.args[5]:
            raise ModelError(
                "a batch norm in training mode changes its statistics: call .eval() on the module"
            )
    if any(_is_mutable(node.target) for node in calls):
        with _silence():
            signature = program.run_decompositions({}).graph_signature
        changed = [
            *signature.buffers_to_mutate.values(),
            *signature.user_inputs_to_mutate.values(),
            *getattr(signature, "parameters_to_mutate", {}).values(),
        ]
        if changed:
            raise ModelError(f"the function changes {changed[0]!r} in place, a library cannot")


def _is_random(node: Any) -> bool:
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    given = dict(node.kwargs)
    for number, argument in enumerate(node.target._schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        given.setdefault(argument.name, node.args[number] if number < len(node.args) else default)
    # Dropouts that do nothing are in programs of modules in evaluation mode.
    rates = [given[name] for name in ("dropout_p", "dropout", "p") if name in given]
    return given.get("train") is not False and not (rates and rates[0] == 0)


def _is_mutable(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


@contextmanager
def _silence() -> Iterator[None]:
    """Keep torch's warnings about itself from users, who can do nothing about them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
