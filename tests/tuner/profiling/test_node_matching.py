"""Kernel calls are recognised by their data, and nothing is guessed."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tuner.engines.base import ObservedCall
from tuner.engines.runtime.tensor_digests import Array, digest_of
from tuner.peers.base import GraphNode, ObservedGraph
from tuner.profiling.node_matching import CallGroup, group_calls

_RNG = np.random.default_rng(0)
_X: Array = _RNG.normal(size=(1, 4, 6, 5)).astype("float32")


def graph(values: Mapping[str, tuple[str, str, Any]]) -> ObservedGraph:
    """Return a graph of nodes of one output: operator, inputs in one text, and value."""
    nodes = tuple(
        GraphNode(f"node_{name}", operator, tuple(inputs.split()), (name,))
        for name, (operator, inputs, _) in values.items()
    )
    digests = {name: digest_of(value) for name, (_, _, value) in values.items()}
    return ObservedGraph(nodes, ("x",), digests)


def call(number: int, sources: tuple[int, ...], *outputs: Array) -> ObservedCall:
    """Return a call of a library with its outputs."""
    return ObservedCall(number, sources, tuple(digest_of(output) for output in outputs))


_A = _X * 2.0 + 1.0
_B = np.maximum(_A, 0.0)
_C = np.square(_B)
_CHAIN = graph({"a": ("Mul", "x w", _A), "b": ("Relu", "a", _B), "c": ("Mul", "b b", _C)})


def test_a_fused_call_computes_the_nodes_up_to_its_value() -> None:
    """Layout and padded channels make no difference; the next call starts after them."""
    padded = np.concatenate([_B, np.zeros((1, 4, 6, 5), "float32")], axis=1)
    calls = [call(0, (), padded.transpose(0, 2, 3, 1)), call(1, (0,), _C)]

    assert group_calls(calls, _CHAIN) == (CallGroup((0,), (0, 1)), CallGroup((1,), (2,)))


def test_rounding_does_not_hide_a_value() -> None:
    """A variant of a convolution errs by some millionths of its output."""
    noise = 1.0 + 1e-5 * _RNG.normal(size=_B.shape)

    assert group_calls([call(0, (), _B * noise)], _CHAIN) == (CallGroup((0,), (0, 1)),)


def test_another_value_of_the_same_shape_is_unknown() -> None:
    """Shapes and order prove nothing."""
    assert group_calls([call(0, (), _B * 1.1)], _CHAIN) == (CallGroup((0,), ()),)


def test_a_part_of_a_sum_forms_a_group_with_its_reader() -> None:
    """The first call writes no value of the model, but its reader does."""
    calls = [call(0, (), _A * 0.3), call(1, (0,), _B), call(2, (1,), _C)]

    assert group_calls(calls, _CHAIN) == (CallGroup((0, 1), (0, 1)), CallGroup((2,), (2,)))


def test_a_call_that_many_read_is_left_alone() -> None:
    """A mask in a layout of its own does not join all layers."""
    values = {f"b{n}": ("Mul", "x w", _X * (n + 2.0)) for n in range(6)}
    calls = [call(0, (), np.cos(_X)), *(call(n, (0,), _X * (n + 1.0)) for n in range(1, 7))]

    groups = group_calls(calls, graph(values))

    assert groups[0] == CallGroup((0,), ())
    assert [group.nodes for group in groups[1:]] == [(n,) for n in range(6)]


def test_a_call_that_all_steps_of_a_layer_read_is_in_their_group() -> None:
    """The products of a recurrent layer are read by each of its steps, and part of its work."""
    steps = [call(n, (0, n - 1), np.sin(n * _X)) for n in range(1, 7)]
    calls = [call(0, (), np.cos(_X)), *steps, call(7, (6,), _A)]

    assert group_calls(calls, _CHAIN) == (CallGroup(tuple(range(8)), (0,)),)


def test_moved_elements_belong_to_the_call_that_wrote_them() -> None:
    """A reshape is a view of the library, and has no kernel."""
    values = {
        "a": ("Mul", "x w", _A),
        "flat": ("Reshape", "a shape", _A.reshape(-1)),
        "b": ("Relu", "flat", _B.reshape(-1)),
    }

    assert group_calls([call(0, (), _A), call(1, (0,), _B)], graph(values)) == (
        CallGroup((0,), (0, 1)),
        CallGroup((1,), (2,)),
    )


def test_a_copy_computes_a_node_only_in_the_order_of_the_model() -> None:
    """A conversion of layouts has the same elements, and computes nothing of the model."""
    turned = _A.transpose(0, 3, 1, 2)
    values = {"a": ("Mul", "x w", _A), "turned": ("Transpose", "a", turned)}
    first = call(0, (), _A.transpose(0, 2, 3, 1))

    copied = group_calls([first, call(1, (0,), turned)], graph(values))
    converted = group_calls([first, call(1, (0,), _A[:, ::-1])], graph(values))

    assert copied == (CallGroup((0,), (0,)), CallGroup((1,), (1,)))
    assert converted == (CallGroup((0,), (0, 1)), CallGroup((1,), ()))


def test_equal_values_of_two_branches_are_told_apart_by_what_they_read() -> None:
    """A value that the inputs of a call do not lead to is not its own."""
    values = {
        "left": ("Mul", "x w", _A),
        "right": ("Mul", "x v", _X * 3.0),
        "same": ("Abs", "left", np.abs(_A)),
        "twin": ("Abs", "right", np.abs(_A)),
    }
    calls = [call(0, (), _A), call(1, (), _X * 3.0), call(2, (1,), np.abs(_A))]

    assert group_calls(calls, graph(values))[2] == CallGroup((2,), (3,))


def test_constants_are_nodes_of_no_call() -> None:
    """Nodes that do not depend on an input were folded when the library was built."""
    values = {
        "w": ("Exp", "weights", np.exp(_X)),
        "shape": ("Shape", "x", np.array([4, 30])),
        "a": ("Mul", "x w", _A),
        "b": ("Reshape", "a shape", _B),
    }

    assert group_calls([call(0, (), _B)], graph(values)) == (CallGroup((0,), (2, 3)),)


def test_masks_do_not_hide_the_other_elements() -> None:
    """Infinity and the largest float count as one."""
    scores = _X.copy()
    scores[..., 0] = -np.inf
    other = _X.copy() * 1.5
    other[..., 0] = -np.inf

    assert digest_of(scores).has_values_of(digest_of(scores[:, ::-1]))
    assert not digest_of(scores).has_values_of(digest_of(other))
