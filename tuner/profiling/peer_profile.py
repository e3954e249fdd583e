"""The time that other runtimes take for the same nodes of a model."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.peers.base import PeerNode
from tuner.profiling.node_matching import CallGroup, Groups


@dataclass(frozen=True)
class SharedWork:
    """Calls of a library and nodes of a peer that compute the same nodes of the model.

    Attributes:
        calls: Positions of the calls in the run.
        peer_nodes: Positions of the peer's nodes.
        secs: Seconds of the library's calls together.
        peer_secs: Seconds of the peer's nodes together.
    """

    calls: tuple[int, ...]
    peer_nodes: tuple[int, ...]
    secs: float
    peer_secs: float

    @property
    def loss(self) -> float:
        """Seconds that the library takes longer than the peer; negative if it is faster."""
        return self.secs - self.peer_secs


@dataclass(frozen=True)
class PeerProfile:
    """The profile of a peer, as far as it can be laid beside that of a library.

    Attributes:
        nodes: All nodes in the order in which they ran.
        shared: Work of both, the largest loss of the library first.
    """

    name: str
    version: str
    nodes: tuple[PeerNode, ...]
    shared: tuple[SharedWork, ...]

    @property
    def secs(self) -> float:
        """Seconds of all nodes together."""
        return sum(node.secs for node in self.nodes)

    @property
    def matched_secs(self) -> float:
        """Seconds of the nodes whose work is known to be that of calls."""
        return sum(work.peer_secs for work in self.shared)

    def by_workload(self, workloads: Sequence[str]) -> dict[str, float]:
        """Return the seconds of the peer by workload, where all of its calls can be told apart.

        Args:
            workloads: Workload of every call, in order.
        """
        secs: dict[str, float] = defaultdict(float)
        n_known: Counter[str] = Counter()
        for work in self.shared:
            names = {workloads[call] for call in work.calls}
            if len(names) == 1:
                (name,) = names
                secs[name] += work.peer_secs
                n_known[name] += len(work.calls)
        total = Counter(workloads)
        return {name: each for name, each in secs.items() if n_known[name] == total[name]}


def match(
    name: str,
    version: str,
    groups: Sequence[CallGroup],
    call_secs: Sequence[float],
    nodes: Sequence[PeerNode],
) -> PeerProfile:
    """Lay the nodes of a peer beside the calls of a library that compute the same.

    A node of the model that several groups of calls compute, such as a mask, joins none of them.

    Args:
        groups: Groups of the library's calls.
        nodes: Nodes of the peer, in the order in which they ran.
    """
    n_groups = Counter(number for group in groups for number in group.nodes)
    owners = {
        number: position
        for position, group in enumerate(groups)
        for number in group.nodes
        if n_groups[number] == 1
    }
    joined = Groups(len(groups) + len(nodes))
    is_matched = []
    for position, node in enumerate(nodes):
        found_in = sorted({owners[number] for number in node.origins if number in owners})
        joined.join([len(groups) + position, *found_in])
        is_matched.append(bool(found_in))
    work: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for position, group in enumerate(groups):
        work[joined.find(position)][0].extend(group.calls)
    for position in range(len(nodes)):
        if is_matched[position]:
            work[joined.find(len(groups) + position)][1].append(position)
    shared = [
        SharedWork(
            tuple(sorted(calls)),
            tuple(positions),
            sum(call_secs[call] for call in calls),
            sum(nodes[position].secs for position in positions),
        )
        for calls, positions in work.values()
        if calls and positions
    ]
    return PeerProfile(
        name, version, tuple(nodes), tuple(sorted(shared, key=lambda each: -each.loss))
    )
