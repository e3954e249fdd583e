"""Nodes of a peer are laid beside the calls that compute the same nodes of the model."""

from collections.abc import Sequence

import pytest

from tuner.peers.base import PeerNode
from tuner.profiling.node_matching import CallGroup
from tuner.profiling.peer_profile import PeerProfile, match

Numbers = tuple[int, ...]
_SECS = [1e-4, 2e-4, 3e-4, 4e-4]
_WORKLOADS = ["one", "two", "one", "three"]


def profile(groups: Sequence[tuple[Numbers, Numbers]], *nodes: PeerNode) -> PeerProfile:
    """Match groups, given as calls and nodes of the model, with nodes of a peer."""
    return match("peer", "1", [CallGroup(*group) for group in groups], _SECS, nodes)


def node(secs: float, *origins: int) -> PeerNode:
    """Return a node of a peer."""
    return PeerNode("n", "Conv", secs, origins)


def test_a_fused_node_of_the_peer_meets_the_call_that_computes_part_of_it() -> None:
    """Node 1 of the model is inside the call, whatever the peer tells of the others."""
    matched = profile([((0,), (0, 1, 2)), ((1,), (3,))], node(5e-5, 1), node(6e-5, 3))

    assert matched.by_workload(_WORKLOADS[:2]) == pytest.approx({"one": 5e-5, "two": 6e-5})
    assert matched.matched_secs == pytest.approx(matched.secs)


def test_work_that_cannot_be_divided_belongs_to_no_workload() -> None:
    """A node of the peer that spans two calls is compared with both together."""
    matched = profile([((0,), (0,)), ((1,), (1,))], node(5e-5, 0, 1))

    assert matched.by_workload(_WORKLOADS[:2]) == {}
    (work,) = matched.shared
    assert work.calls == (0, 1)
    assert (work.secs, work.peer_secs) == pytest.approx((3e-4, 5e-5))


def test_a_workload_counts_only_if_all_of_its_calls_are_known() -> None:
    """Half of the calls would make the peer look fast."""
    groups = [((0,), (0,)), ((1,), (1,)), ((2,), ())]
    matched = profile([*groups, ((3,), (3,))], node(1e-5, 0), node(2e-5, 1))

    assert matched.by_workload(_WORKLOADS) == pytest.approx({"two": 2e-5})


def test_nodes_without_a_known_origin_match_nothing() -> None:
    """The peer's own conversions stay in its sum."""
    matched = profile([((0,), (0,))], node(1e-5), node(2e-5, 7))

    assert matched.shared == ()
    assert matched.secs == pytest.approx(3e-5)


def test_a_mask_that_several_calls_compute_does_not_join_them() -> None:
    """Each call meets its own node; the node of the mask is of none of them."""
    matched = profile([((0,), (0, 9)), ((1,), (1, 9))], node(1e-5, 9), node(2e-5, 0), node(3e-5, 1))

    assert [work.calls for work in matched.shared] == [(1,), (0,)]
    assert matched.matched_secs == pytest.approx(5e-5)


def test_the_largest_loss_comes_first() -> None:
    """A call that is faster than the peer has a negative loss."""
    groups = [((0,), (0,)), ((1,), (1,)), ((2,), (2,))]
    matched = profile(groups, node(1.5e-4, 0), node(1e-4, 1), node(2.9e-4, 2))

    assert [work.calls for work in matched.shared] == [(1,), (2,), (0,)]
    assert matched.shared[-1].loss < 0.0
