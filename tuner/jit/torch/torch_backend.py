"""The backend ``tuner`` of ``torch.compile``: the graphs of dynamo as libraries."""

import logging
import sys
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import fx

from tuner.errors import ModelError, WorkError
from tuner.jit import forks, libraries
from tuner.jit.background import TuningRequest, make_background_tuner
from tuner.jit.libraries import FileCopy, LoadedLibrary, is_better
from tuner.jit.options import JitOptions
from tuner.jit.signature_cache import ServedLibrary, SignatureCache
from tuner.jit.torch.torch_calls import GraphCall, compare, picker
from tuner.jit.torch.torch_programs import Inputs, Number, examine, is_plain

_LOG = logging.getLogger(__name__)
_version, _shape = attrgetter("_version"), attrgetter("shape")


def compile_graph(
    graph: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph of ``torch.compile(function, backend="tuner", options=...)``.

    Args:
        graph: The graph, whose weights are inputs.
        inputs: Inputs of its first call.
        options: Fields of :class:`tuner.jit.options.JitOptions`.
    """
    return Backend(JitOptions(**(options or {})))(graph, inputs)


class Backend:
    """Compiles graphs, which share one cache of libraries; thread-safe.

    Attributes:
        name: Name for people; empty for the names of the modules that graphs come from.
        background: The tuner of the service in the options.
    """

    def __init__(self, options: JitOptions, name: str = "") -> None:
        self.options = options
        self.name = options.name or name
        self.forget()
        forks.register_holder(self)

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return a function that computes a graph; its first call compiles."""
        return CompiledGraph(self, graph, inputs)

    def refresh(self) -> int:
        """Load the libraries of better records; return the number of libraries that changed."""
        with self.cache.lock:
            self.cache.drop(lambda call: not call.is_current())
            n_changed = 0
            for call in self.cache.calls():
                old = call.served.loaded
                built = call.build(self.options, unless=old.digest)
                if built is not None and is_better(built[0], old):
                    call.try_out(built[0])
                    self.cache.swap(call, built[0])
                    n_changed += 1
            return n_changed

    def forget(self) -> None:
        """Drop everything in a forked process."""
        self.cache: SignatureCache[GraphCall] = SignatureCache(self.options.maxsize, self.name)
        self.background = make_background_tuner(self.options)


class CompiledGraph:
    """A graph of dynamo that libraries compute: one for each set of shapes, numbers and weights.

    Weights are constants of a library. Each call compares their addresses, and torch's counts of
    their changes in place.
    """

    def __init__(self, backend: Backend, graph: fx.GraphModule, inputs: Sequence[Any]) -> None:
        self._backend = backend
        self._name = backend.name or _name_of(graph)
        self._graph = graph
        self._run_eagerly = graph.forward
        # Threads that make a first call together trace it one after the other.
        self._identity = _identity_of(graph, inputs) or self
        self._facts = facts = examine(graph)
        self._is_eager = not (facts.computed or facts.mutated)
        self._weights: list[int] = []
        self._tensors: list[int] = []
        dynamic: list[int] = []
        numbers: list[int] = []
        self._scalars: list[int] = []
        for at, node in enumerate(graph.graph.find_nodes(op="placeholder")):
            value = inputs[at]
            if not isinstance(value, torch.Tensor):
                numbers.append(at)
            elif node.users and all(user.target == "item" for user in node.users):
                # A number that differed between two calls, which dynamo passes as a tensor.
                self._scalars.append(at)
            elif _is_weight(node, value) and at not in facts.mutated:
                self._weights.append(at)
            else:
                self._tensors.append(at)
                if not all(isinstance(size, int) for size in node.meta["example_value"].shape):
                    dynamic.append(at)
        # Tensors of inference mode have no count.
        self._pick_counted = picker([at for at in self._weights if not inputs[at].is_inference()])
        self._pick_weights = picker(self._weights)
        self._pick_dynamic = picker(dynamic)
        self._pick_numbers = picker(numbers)
        self._pick_scalars = picker(self._scalars)
        if not self._is_eager and (reason := self._refusal(inputs)):
            self._give_up(ModelError(f"it {reason}", code="torch-export"))

    def __call__(self, *inputs: Any) -> Any:
        """Return the results of the graph, by a library that is compiled if missing.

        Raises:
            ModelError, WorkError: If that fails, and the options are strict.
        """
        if self._is_eager:
            return self._run_eagerly(*inputs)
        # Each call of a Python function under torch.compile takes another microsecond.
        key = (
            self._identity,
            *map(_version, self._pick_counted(inputs)),
            *map(torch.Tensor.data_ptr, self._pick_weights(inputs)),
            *map(_shape, self._pick_dynamic(inputs)),
            *self._pick_numbers(inputs),
            *map(torch.Tensor.item, self._pick_scalars(inputs)),
        )
        call = self._backend.cache.find(key)
        return self._add(key, inputs) if call is None else call(inputs)

    def _refusal(self, inputs: Sequence[Any]) -> str:
        """Return why no library can compute the graph; empty if one may."""
        facts = self._facts
        if facts.needs_gradients:
            return "needs gradients: call the function under torch.no_grad()"
        tensors = {at: inputs[at] for at in (*self._weights, *self._tensors)}
        if not all(map(is_plain, tensors.values())):
            return "has sparse or quantized tensors"
        devices = {str(tensor.device) for tensor in tensors.values()}
        if len(devices) != 1 or not devices <= {"cpu", "cuda:0"}:
            names = " and ".join(sorted(devices)) or "no device"
            return f"has tensors on {names}, and a library takes those of the CPU or the first GPU"
        if any(torch.is_autocast_enabled(device.partition(":")[0]) for device in devices):
            return "is called under autocast"
        addresses = [tensor.untyped_storage().data_ptr() for tensor in tensors.values()]
        changed = [tensors[at].untyped_storage().data_ptr() for at in facts.mutated]
        if facts.mutates_views or any(addresses.count(each) > 1 for each in changed):
            return "changes a tensor in place that shares memory with another one"
        return ""

    def _give_up(self, error: ModelError | WorkError) -> None:
        """Run the graph in eager from now on."""
        if self._backend.options.strict:
            raise error
        self._is_eager = True
        warnings.warn(f"{self._name} runs in eager: {error}", RuntimeWarning, stacklevel=2)

    def _add(self, key: Hashable, inputs: Sequence[Any]) -> Any:
        """Compile the graph for the inputs; return its results."""
        cache = self._backend.cache
        with cache.lock:
            call = cache.find(key)
            if call is None and not self._is_eager:
                try:
                    return self._compile(key, inputs)
                except (ModelError, WorkError) as error:
                    self._give_up(error)
        return self._run_eagerly(*inputs) if call is None else call(inputs)

    def _compile(self, key: Hashable, inputs: Sequence[Any]) -> Any:
        cache, background = self._backend.cache, self._backend.background
        tensors = [inputs[at] for at in self._tensors]
        values = [*inputs]
        for at in self._tensors:
            values[at] = torch.empty_like(inputs[at], device="meta")
        for at in self._scalars:
            values[at] = Number(inputs[at])
        device = next(inputs[at].device for at in (*self._weights, *self._tensors))
        given = Inputs(tuple(values), tuple(self._weights), tuple(self._tensors), device)
        call = GraphCall(self._name, self._graph, self._facts, given)
        cache.drop(lambda other: other.has_old(call.weights))
        text = f"{self._name} is compiled for {_described(tensors)}"
        _LOG.info("%s", text)
        if sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write(f"note: {text}\n")
        built = call.build(self._backend.options, keep=background is not None)
        assert built is not None
        loaded, program = built
        result = call.try_out(loaded, tensors)
        if problem := compare(result, call.expected(inputs)):
            raise WorkError(f"the library of {self._name} computes another result: {problem}")
        call.served = ServedLibrary(loaded)
        cache.add(key, call)
        if program is not None and background is not None:
            background.submit(self._tuning_request(call, program, tensors, result))
        return call.finish(result, inputs)

    def _tuning_request(
        self,
        call: GraphCall,
        program: FileCopy,
        tensors: Sequence[torch.Tensor],
        result: Sequence[torch.Tensor],
    ) -> TuningRequest:
        """Request a better library, which must return the same result for the same tensors."""
        cache, options = self._backend.cache, self._backend.options
        examples = [tensor.clone() for tensor in tensors]
        expected = [tensor.clone() for tensor in result]

        def is_current() -> bool:
            return any(call is other for other in cache.calls()) and call.is_current()

        def accept(loaded: LoadedLibrary) -> str:
            problem = compare(call.try_out(loaded, examples), expected)
            if not problem:
                with cache.lock:
                    if is_current():
                        cache.swap(call, loaded)
            return problem

        def write_model(folder: Path) -> Path:
            out = folder / f"{self._name}.onnx"
            libraries.call_in_worker(
                options, "tuner.jit.torch.torch_onnx", "convert", str(program.path), str(out)
            )
            return out

        manifest = call.served.loaded.manifest
        return TuningRequest(self._name, manifest, {}, write_model, is_current, accept)


def _identity_of(graph: fx.GraphModule, inputs: Sequence[Any]) -> str:
    """Return what tells a graph from others; empty if it holds tensors or modules of its own."""
    if any(node.op in ("get_attr", "call_module") for node in graph.graph.nodes):
        return ""
    kinds = [
        f"{each.device} {each.dtype} {each.shape} {each.stride()}"
        if isinstance(each, torch.Tensor)
        else ""
        for each in inputs
    ]
    return "\n".join([*kinds, graph.code])


def _is_weight(node: fx.Node, tensor: torch.Tensor) -> bool:
    """Return whether a tensor belongs to a module."""
    # Dynamo marks all parameters, those among the arguments too, which have a name of their own.
    is_marked = hasattr(tensor, "_dynamo_static_input_type")
    return is_marked and ("_parameters_" in node.name or "_buffers_" in node.name)


def _name_of(graph: fx.GraphModule) -> str:
    """Return the class of the outermost module that a graph comes from."""
    stacks = (node.meta.get("nn_module_stack") for node in graph.graph.nodes)
    _, kind = next(iter(next(filter(None, stacks), {"": ("", "function")}).values()))
    return str(getattr(kind, "__name__", kind)).rpartition(".")[2]


def _described(tensors: Sequence[torch.Tensor]) -> str:
    shapes = ["x".join(map(str, each.shape)) or "a scalar" for each in tensors]
    return ", ".join(shapes[:4]) + (f" and {len(shapes) - 4} more" if len(shapes) > 4 else "")
