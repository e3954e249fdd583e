"""Calls of a graph with one set of shapes, numbers and weights, by one library."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import fx

from tuner.files.process_folder import shared_folder
from tuner.jit import libraries
from tuner.jit.agreement import TOLERANCE, disagreement
from tuner.jit.libraries import FileCopy, LoadedLibrary
from tuner.jit.options import JitOptions
from tuner.jit.signature_cache import ServedLibrary
from tuner.jit.torch.torch_programs import GraphFacts, Inputs, export, views_of

# Address of a tensor, and torch's count of its changes in place; None in inference mode.
State: TypeAlias = tuple[int, int | None]
_HALF_TOLERANCE = 0.02
# Vector loads of a kernel may need the alignment of the widest vector, which torch allocates with.
_ALIGNMENT_MASK = 63


class GraphCall:
    """A graph with fixed shapes, numbers and weights, called on all of its inputs.

    Args:
        name: Name for people.
        facts: Its properties.
        inputs: Its inputs. The weights among them stay in memory, so that no other tensor gets
            their addresses.

    Attributes:
        served: The library; set after :meth:`build`.
        weights: State of each weight by the identity of its tensor.
    """

    served: ServedLibrary

    def __init__(self, name: str, graph: fx.GraphModule, facts: GraphFacts, inputs: Inputs) -> None:
        self._name = name
        self.weights = states_of(inputs)
        self._held = [inputs.values[at].detach() for at in inputs.weights]
        self._graph = graph
        self._facts = facts
        self._inputs = inputs
        self._pick_tensors = picker(inputs.tensors)
        self._is_on_gpu = is_on_gpu(inputs.device)
        self._views = views_of(graph, facts) if facts.views else None
        self._results: tuple[Any, ...] = ()
        self._specs: tuple[Any, ...] = ()
        self._shared: set[int] = set()

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Return the results of the graph, and change the inputs that it changes."""
        tensors = list(map(prepare, self._pick_tensors(inputs)))
        outputs = self._new_outputs(self.served) if self._is_on_gpu else ()
        return self.finish(self.served.run(tensors, outputs), inputs)

    def has_old(self, weights: Mapping[int, State]) -> bool:
        """Return whether the states of weights show that this call cannot come again."""
        return any(weights.get(key, state) != state for key, state in self.weights.items())

    def is_current(self) -> bool:
        """Return whether no weight has changed."""
        return self.weights == states_of(self._inputs)

    def build(
        self, options: JitOptions, unless: str = "", *, keep: bool = False
    ) -> tuple[LoadedLibrary, FileCopy | None] | None:
        """Build the library from the best records, and load it.

        Args:
            unless: Digest of a library that is loaded already.
            keep: True to keep the program of a library with fallbacks.

        Returns:
            The library, and a copy of its program; None if it is the one of ``unless``.

        Raises:
            ModelError: If the graph cannot be compiled.
            WorkError: If the compilation fails.
        """
        program = export(self._graph, self._facts, self._inputs)
        self._results, self._specs = program.results, program.specs
        kind = "cuda" if is_on_gpu(self._inputs.device) else "llvm"
        with tempfile.TemporaryDirectory(prefix="jit-", dir=shared_folder()) as folder:
            path = program.write(Path(folder))
            loaded = libraries.build_and_load(options, path, self._name, {}, unless, kind)
            if loaded is None:
                return None
            return loaded, FileCopy(path) if keep and loaded.n_fallbacks else None

    def try_out(
        self, loaded: LoadedLibrary, tensors: Sequence[torch.Tensor] = ()
    ) -> list[torch.Tensor]:
        """Return the tensors that a library computes, and learn which of them it shares.

        Outputs in the library's own memory, or in that of an input, are those that two calls return
        at one address. Outputs that an older library shared stay: an unneeded copy is harmless.

        Args:
            loaded: A library for this call.
            tensors: Tensors that the program takes; zeros by default.
        """
        served = ServedLibrary(loaded)
        tensors = [prepare(tensor) for tensor in tensors or self._inputs.zeros()]
        first, second = (served.run(tensors, self._new_outputs(served)) for _ in range(2))
        self._shared |= {
            number
            for number, (one, other) in enumerate(zip(first, second, strict=True))
            if one.data_ptr() == other.data_ptr()
        }
        return first

    def finish(self, tensors: list[torch.Tensor], inputs: Sequence[Any]) -> Any:
        """Return the results of the graph from the tensors that a library has computed."""
        for number in self._shared:
            tensors[number] = tensors[number].clone()
        facts = self._facts
        if len(facts.computed) == len(self._results) and not facts.mutated:
            return tensors
        results = [*self._results]
        for at, tensor in zip(facts.computed, tensors, strict=False):
            results[at] = tensor
        for at, tensor in zip(facts.mutated, tensors[len(facts.computed) :], strict=True):
            inputs[at].copy_(tensor)
        if self._views is not None:
            for at, view in zip(facts.views, self._views(*inputs), strict=True):
                results[at] = view
        return results

    def expected(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Return the tensors that torch computes in eager, without a change of the inputs."""
        values = [*inputs]
        for at in self._facts.mutated:
            values[at] = values[at].clone()
        results = self._graph(*values)
        return [results[at] for at in self._facts.computed] + [
            values[at] for at in self._facts.mutated
        ]

    def _new_outputs(self, served: ServedLibrary) -> list[torch.Tensor]:
        """Return memory for the outputs on a GPU, of torch, which the results keep."""
        if not served.on_gpu:
            return []
        device = self._inputs.device
        return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self._specs]


def picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that picks elements of a sequence."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


def is_on_gpu(device: torch.device) -> bool:
    """Return whether a device is a GPU."""
    return bool(device.type == "cuda")


def prepare(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that a library can take: without a gradient, contiguous and aligned."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.data_ptr() & _ALIGNMENT_MASK:
        return tensor.resolve_neg().clone(memory_format=torch.contiguous_format)
    return tensor


def states_of(inputs: Inputs) -> dict[int, State]:
    """Return the state of each weight by the identity of its tensor."""
    weights = [inputs.values[at] for at in inputs.weights]
    return {
        id(weight): (weight.data_ptr(), None if weight.is_inference() else int(weight._version))
        for weight in weights
    }


def compare(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> str:
    """Return how tensors differ from the expected ones; empty if they agree."""
    has_halves = any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in expected)
    for left, right in zip(actual, expected, strict=False):
        if left.dtype != right.dtype:
            return f"an output is {left.dtype} instead of {right.dtype}"
    return disagreement(
        [_array(tensor) for tensor in actual],
        [_array(tensor) for tensor in expected],
        _HALF_TOLERANCE if has_halves else TOLERANCE,
    )


def _array(tensor: torch.Tensor) -> Any:
    return (tensor.float() if tensor.is_floating_point() else tensor).detach().cpu().numpy()
