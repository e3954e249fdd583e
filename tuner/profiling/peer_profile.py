"""The time that other runtimes take for the same subgraphs."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.peers.base import PeerNode

# Padded channels, and operators that are fused into a subgraph, add to what a layer needs.
_TOLERANCE = 1.2
_SHAPE = re.compile(r"\[([\dx]+)\]$")


@dataclass(frozen=True)
class PeerProfile:
    """The profile of a peer, as far as it can be laid beside that of a library.

    Attributes:
        name: Name of the peer.
        version: Version of the peer.
        by_workload: Seconds of the nodes that compute the same layers, by workload.
        matched_secs: Seconds of all nodes that were matched.
        nodes: All nodes in the order in which they ran.
    """

    name: str
    version: str
    by_workload: dict[str, float]
    matched_secs: float
    nodes: tuple[PeerNode, ...]

    @property
    def secs(self) -> float:
        """Seconds of all nodes together."""
        return sum(node.secs for node in self.nodes)


def match(
    name: str,
    version: str,
    calls: Sequence[tuple[str, str]],
    flops: Mapping[str, float],
    nodes: Sequence[PeerNode],
) -> PeerProfile:
    """Match the calls of a library with the nodes of a peer.

    Convolutions and products are matched, each with the first node left that writes as much and
    needs as many operations. The rest of a network has no counterpart that could be told.

    Args:
        name: Name of the peer.
        version: Version of the peer.
        calls: Name and workload of the library's calls, in order.
        flops: Operations of one call, by workload.
        nodes: Nodes of the peer, in the order in which they ran.
    """
    by_workload: dict[str, float] = defaultdict(float)
    left = [node for node in nodes if node.flop > 0.0]
    for call, workload in calls:
        n_elements, flop = _n_elements(call), flops.get(workload, 0.0)
        for node in left:
            if _is_close(n_elements, node.n_elements) and _is_close(flop, node.flop):
                by_workload[workload] += node.secs
                left.remove(node)
                break
    return PeerProfile(name, version, dict(by_workload), sum(by_workload.values()), tuple(nodes))


def _is_close(own: float, other: float) -> bool:
    return other <= own * _TOLERANCE and own <= other * _TOLERANCE


def _n_elements(name: str) -> int:
    shape = _SHAPE.search(name)
    return math.prod(map(int, shape[1].split("x"))) if shape else 0
