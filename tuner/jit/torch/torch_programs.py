"""Export graphs of ``torch.compile`` as programs that an engine imports."""

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export.passes import move_to_device_pass
from torch.nn import functional

from tuner.errors import ModelError, summary
from tuner.networks.torch.torch_random import is_random

# Operators that may change their fourth operand, which torch does not count.
_NORMS = frozenset(["batch_norm.default", "instance_norm.default"])


@dataclass(frozen=True)
class GraphFacts:
    """Properties of a graph that hold for all shapes of its inputs.

    Attributes:
        computed: Positions of the results that are tensors of their own.
        views: Positions of the results that share memory with an input.
        mutated: Positions of the inputs that the graph changes in place.
        mutates_views: True if such a result shares memory with such an input.
        needs_gradients: True if torch may ask for the gradient of a result.
    """

    computed: tuple[int, ...]
    views: tuple[int, ...]
    mutated: tuple[int, ...]
    mutates_views: bool
    needs_gradients: bool


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is neither sparse nor quantized."""
    return tensor.layout is torch.strided and not tensor.is_quantized


def examine(graph: fx.GraphModule) -> GraphFacts:
    """Run a graph on the tensors without values that dynamo has traced it with."""
    inputs = [node.meta["example_value"] for node in graph.graph.find_nodes(op="placeholder")]
    tensors = {at: value for at, value in enumerate(inputs) if isinstance(value, torch.Tensor)}
    versions = {at: tensor._version for at, tensor in tensors.items()}
    modes = (tensor.fake_mode for tensor in tensors.values() if hasattr(tensor, "fake_mode"))
    with next(modes, contextlib.nullcontext()):
        results = graph(*inputs)
    mutated = [at for at, tensor in tensors.items() if tensor._version != versions[at]]
    memory = {_memory(tensor): at for at, tensor in tensors.items()}
    returned = {at: value for at, value in enumerate(results) if isinstance(value, torch.Tensor)}
    views = {
        at: memory[_memory(value)] for at, value in returned.items() if _memory(value) in memory
    }
    return GraphFacts(
        computed=tuple(at for at in returned if at not in views),
        views=tuple(views),
        mutated=tuple(mutated),
        mutates_views=any(at in mutated for at in views.values()),
        needs_gradients=any(value.requires_grad for value in returned.values()),
    )


def _memory(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage()._cdata if is_plain(tensor) else id(tensor)


def views_of(graph: fx.GraphModule, facts: GraphFacts) -> Callable[..., Any]:
    """Return the part of a graph that makes those results that are views of its inputs."""
    part = fx.Graph()
    results = part.graph_copy(graph.graph, {})
    part.output(tuple(results[at] for at in facts.views))
    part.eliminate_dead_code()
    run: Callable[..., Any] = fx.GraphModule(graph, part).forward
    return run


class Number(float):
    """A number in the place of a tensor, of which a graph uses only the value."""

    def item(self) -> float:
        """Return the number."""
        return float(self)


@dataclass(frozen=True)
class Inputs:
    """The inputs of a graph without the values of the tensors that are not weights.

    Attributes:
        values: Weights, tensors without values, and numbers.
        weights: Positions of the weights, which become part of the program.
        tensors: Positions of the tensors that the program takes.
    """

    values: tuple[Any, ...]
    weights: tuple[int, ...]
    tensors: tuple[int, ...]
    device: torch.device

    def zeros(self) -> tuple[torch.Tensor, ...]:
        """Return distinct tensors of zeros: an export must not take two inputs for one."""
        values = [self.values[at] for at in self.tensors]
        return tuple(torch.zeros(v.shape, dtype=v.dtype, device=self.device) for v in values)


@dataclass(frozen=True)
class Program:
    """A graph for one set of shapes, as an exported program.

    Attributes:
        exported: Program that returns the computed results, then the new values of the inputs that
            the graph changes.
        results: Results of the graph: numbers, and None in the place of tensors.
        specs: Shape and dtype of each tensor that the program returns.
    """

    exported: Any
    results: tuple[Any, ...]
    specs: tuple[tuple[Any, Any], ...]

    def write(self, folder: Path) -> Path:
        """Write the program to a file, with its weights.

        The same graph with the same weights gives the same bytes in any process.
        """
        path = folder / "function.pt2"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(self.exported, path)
        return path


def export(graph: fx.GraphModule, facts: GraphFacts, inputs: Inputs) -> Program:
    """Export a graph for one set of shapes.

    Raises:
        ModelError: If torch cannot export it, or it draws random numbers or updates the
            statistics of a norm.
    """
    # Processes that have no graph need not import dynamo, which takes a second.
    from torch._dynamo.convert_frame import compile_lock

    traces: list[Any] = []
    root = _Root(without_fast_paths(graph), facts, inputs, traces.append)
    try:
        # Users cannot act on torch's warnings about itself.
        # While torch exports in one thread, no other may trace: both change state of all threads.
        with compile_lock, warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            exported = torch.export.export(root, inputs.zeros(), strict=False)
    # Errors of the graph itself, and of torch's limits.
    except Exception as error:
        raise ModelError(
            f"torch cannot export the function: {summary(error)}", code="torch-export"
        ) from error
    for node in exported.graph.nodes:
        if node.op == "call_function" and is_random(node):
            raise ModelError(
                f"{node.target} draws random numbers, and a library cannot: call .eval() on the "
                "module, or draw outside of the function",
                code="random-operator",
            )
        if getattr(node.target, "__name__", "") in _NORMS and node.args[3] and node.args[5]:
            raise ModelError(
                "a norm in training mode changes its statistics: call .eval() on the module",
                code="training-mode",
            )
        # Without source locations, which would make a new network of an edited file.
        node.meta = {key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta}
    if inputs.device.type != "cpu":
        # The workers that read it need no GPU, and the target decides where it runs.
        exported = move_to_device_pass(exported, "cpu")
    return Program(exported, *traces[-1])


class _Root(nn.Module):  # type: ignore[misc]
    """A graph as a module with weights, which takes and returns only tensors."""

    def __init__(
        self,
        graph: fx.GraphModule,
        facts: GraphFacts,
        inputs: Inputs,
        on_trace: Callable[[tuple[Any, ...]], None],
    ) -> None:
        super().__init__()
        # In a tuple, since torch would register the graph as a part, and revert what a trace adds
        # to attributes.
        self._call = (graph.forward, facts, inputs, on_trace)
        for number, at in enumerate(inputs.weights):
            self.register_buffer(f"weight_{number}", inputs.values[at].detach())
        self.eval()

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the graph on tensors in the place of those without values."""
        run, facts, inputs, on_trace = self._call
        values = list(inputs.values)
        for at, weight in zip(inputs.weights, self.buffers(), strict=True):
            values[at] = weight
        for at, tensor in zip(inputs.tensors, tensors, strict=True):
            values[at] = tensor.clone() if at in facts.mutated else tensor
        results = run(*values)
        returned = (*(results[at] for at in facts.computed), *(values[at] for at in facts.mutated))
        rest = tuple(None if isinstance(value, torch.Tensor) else value for value in results)
        on_trace((rest, tuple((tuple(each.shape), each.dtype) for each in returned)))
        return returned


def without_fast_paths(graph: fx.GraphModule) -> fx.GraphModule:
    """Return a graph without fused encoder layers, which importers do not know."""
    fused = torch._transformer_encoder_layer_fwd
    if not graph.graph.find_nodes(op="call_function", target=fused):
        return graph
    plain = fx.Graph()
    plain.output(plain.graph_copy(graph.graph, {}))
    for node in plain.find_nodes(op="call_function", target=fused):
        node.target = _encoder_layer
    return fx.GraphModule(graph, plain)


def _encoder_layer(x: Any, width: int, n_heads: int, *rest: Any) -> Any:
    """Compute ``torch._transformer_encoder_layer_fwd``, whose arguments these are."""
    (weight, bias, out_weight, out_bias, use_gelu, norm_first, eps), rest = rest[:7], rest[7:]
    norms, (weight_1, bias_1, weight_2, bias_2), masks = (rest[:2], rest[2:4]), rest[4:8], rest[8:]

    def attend(x: Any) -> Any:
        parts = functional.linear(x, weight, bias).unflatten(-1, (3, n_heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        heads = functional.scaled_dot_product_attention(q, k, v, attn_mask=_added(masks, q.dtype))
        return functional.linear(heads.transpose(1, 2).flatten(2), out_weight, out_bias)

    def feed(x: Any) -> Any:
        hidden = functional.linear(x, weight_1, bias_1)
        hidden = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
        return functional.linear(hidden, weight_2, bias_2)

    for part, (scale, shift) in zip((attend, feed), norms, strict=True):
        if norm_first:
            x = x + part(functional.layer_norm(x, (width,), scale, shift, eps))
        else:
            x = functional.layer_norm(x + part(x), (width,), scale, shift, eps)
    return x


def _added(masks: Sequence[Any], dtype: torch.dtype) -> Any:
    """Return what a mask and its type add to scores of (rows, heads, queries, keys)."""
    if not masks or masks[0] is None:
        return None
    mask, kind = masks
    if kind == 1:
        # Of the keys of each row.
        mask = mask[:, None, None, :]
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)
    return mask
