"""Layers of a library find the nodes of a peer that compute the same."""

import pytest

from tuner.peers.base import PeerNode, make_node
from tuner.profiling.peer_profile import match

_FIRE = [("conv2d_add_relu[1x8x8x64]", "one"), ("conv2d_add_relu[1x8x8x64]", "three")]
_FLOPS = {"one": 2.0 * 4096 * 16 + 8192, "three": 2.0 * 4096 * 144 + 8192}


def conv(name: str, window: int, secs: float) -> PeerNode:
    """Return a convolution from 16 to 64 channels of 8 by 8 pixels."""
    return make_node(name, "Conv", [(1, 16, 8, 8), (64, 16, window, window)], (1, 64, 8, 8), [secs])


def test_layers_of_one_output_are_told_apart_by_their_operations() -> None:
    """The order of two branches does not matter."""
    profile = match("peer", "1", _FIRE, _FLOPS, [conv("b", 3, 3e-4), conv("a", 1, 1e-4)])

    assert profile.by_workload == pytest.approx({"one": 1e-4, "three": 3e-4})
    assert profile.matched_secs == pytest.approx(profile.secs)


def test_calls_of_one_workload_are_summed() -> None:
    """Each node counts once."""
    nodes = [conv("a", 1, 1e-4), conv("b", 1, 2e-4)]
    profile = match("peer", "1", [_FIRE[0], _FIRE[0], _FIRE[0]], _FLOPS, nodes)

    assert profile.by_workload == pytest.approx({"one": 3e-4})


def test_other_nodes_match_nothing() -> None:
    """A node without operations, or with many more, stays without a subgraph."""
    nodes = [make_node("r", "Relu", [(1, 64, 8, 8)], (1, 64, 8, 8), [1e-4]), conv("c", 5, 1e-4)]
    profile = match("peer", "1", _FIRE, _FLOPS, nodes)

    assert profile.by_workload == {}
    assert profile.secs == pytest.approx(2e-4)


@pytest.mark.parametrize(
    ("operator", "inputs", "output", "flop"),
    [
        ("Conv", [(1, 16, 8, 8), (64, 16, 3, 3)], (1, 64, 8, 8), 2 * 4096 * 144),
        ("GroupConvolution", [(1, 64, 8, 8), (64, 1, 1, 3, 3)], (1, 64, 8, 8), 2 * 4096 * 9),
        ("MatMul", [(2, 8, 32), (32, 4)], (2, 8, 4), 2 * 64 * 32),
        ("FullyConnected", [(1, 512), (10, 512)], (1, 10), 2 * 10 * 512),
        ("Softmax", [(1, 10)], (1, 10), 0),
    ],
)
def test_operations_of_a_node(
    operator: str, inputs: list[tuple[int, ...]], output: tuple[int, ...], flop: float
) -> None:
    """Two operations for each product of an output."""
    assert make_node("n", operator, inputs, output, [1.0]).flop == flop
