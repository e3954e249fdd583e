"""The nodes of an ONNX model that each kernel call of a library computes.

Rewrites and fusion leave no names, so calls are recognised by their data: a call computes a value
of the model if it writes the elements of that value, in whatever layout, in a run on the same
inputs. It then computes the nodes between that value and those of the calls before it. Calls whose
outputs are not in the model, such as one part of a sum that was split, form a group with the calls
that read them, and the nodes are those of the group. Nothing is guessed from names or shapes.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuner.engines.base import ObservedCall
from tuner.engines.runtime.tensor_digests import TensorDigest
from tuner.peers.base import GraphNode, ObservedGraph

# Results that a fixed shape decides.
_SHAPES = frozenset(["Shape", "Size"])
# A call that more others read is left alone unless they are one group: it would join the network.
_MAX_READERS = 4


@dataclass(frozen=True)
class CallGroup:
    """Calls that compute some nodes together; most groups have one call.

    Attributes:
        calls: Positions of the calls in the run.
        nodes: Numbers of the nodes; empty if they are unknown.
    """

    calls: tuple[int, ...]
    nodes: tuple[int, ...]


class Groups:
    """Disjoint sets of numbers that can be joined."""

    def __init__(self, n_items: int) -> None:
        self._parents = list(range(n_items))

    def find(self, item: int) -> int:
        """Return the number that stands for the set of another one."""
        while self._parents[item] != item:
            self._parents[item] = item = self._parents[self._parents[item]]
        return item

    def join(self, items: Iterable[int]) -> None:
        """Join the sets of some numbers."""
        first, *rest = [self.find(item) for item in items]
        for item in rest:
            self._parents[self.find(item)] = first


def group_calls(calls: Sequence[ObservedCall], graph: ObservedGraph) -> tuple[CallGroup, ...]:
    """Find the nodes that the calls of a run compute; return the groups in order of first call.

    Args:
        calls: Calls of the library.
        graph: Graph of the model, in a run on the same inputs.
    """
    return _Matching(calls, graph).groups()


class _Matching:
    """The values of the model that calls were recognised by."""

    def __init__(self, calls: Sequence[ObservedCall], graph: ObservedGraph) -> None:
        self._calls = calls
        self._nodes = graph.nodes
        self._digests = graph.digests
        self._producers = {name: n for n, node in enumerate(graph.nodes) for name in node.outputs}
        self._ancestors = _ancestors(graph, self._producers)
        # Values that calls write, with the call of each.
        self._writers: dict[str, int] = {}
        self._values: list[list[str]] = [[] for _ in calls]
        for position, call in enumerate(calls):
            for output in call.outputs:
                name = self._recognise(call, output)
                if name is not None:
                    self._writers[name] = position
                    self._values[position].append(name)
        self._add_views()

    def groups(self) -> tuple[CallGroup, ...]:
        """Return the groups."""
        readers: dict[int, set[int]] = defaultdict(set)
        for position, call in enumerate(self._calls):
            for source in call.sources:
                readers[source].add(position)
        groups = Groups(len(self._calls))
        unknown = [position for position, values in enumerate(self._values) if not values]
        for position in unknown:
            if len(readers[position]) <= _MAX_READERS:
                groups.join([position, *sorted(readers[position])])
        for position in reversed(unknown):
            # All steps of a recurrent layer read its products, and are one group.
            if len({groups.find(reader) for reader in readers[position]}) == 1:
                groups.join([position, *readers[position]])
        members: dict[int, list[int]] = defaultdict(list)
        for position in range(len(self._calls)):
            members[groups.find(position)].append(position)
        return tuple(
            CallGroup(tuple(positions), tuple(sorted(self._slice(positions))))
            for positions in members.values()
        )

    def _recognise(self, call: ObservedCall, output: TensorDigest) -> str | None:
        """Return the first value that equals an output and that its inputs can lead to."""
        if not output.is_telling:
            return None
        sources = [digest for n in call.sources for digest in self._calls[n].outputs]
        is_copy = any(output.has_values_of(source) for source in sources)
        needed = 0
        for source in call.sources:
            for name in self._values[source]:
                needed |= 1 << self._producers[name]
        for name, number in self._producers.items():
            digest = self._digests.get(name)
            if name in self._writers or digest is None or not self._ancestors[number]:
                continue
            if not output.has_values_of(digest) or needed & ~self._ancestors[number]:
                continue
            # A copy into another layout has the elements of all values that are only moved.
            if is_copy and not output.has_order_of(digest):
                continue
            return name
        return None

    def _add_views(self) -> None:
        """Count what only moves or keeps the elements of a value to the call that wrote it."""
        readers: dict[str, list[int]] = defaultdict(list)
        for number, node in enumerate(self._nodes):
            for name in node.inputs:
                readers[name].append(number)
        waiting = list(self._writers)
        while waiting:
            name = waiting.pop()
            for number in readers[name]:
                for output in self._nodes[number].outputs:
                    if output not in self._writers and self._is_view(output, name):
                        self._writers[output] = self._writers[name]
                        self._values[self._writers[name]].append(output)
                        waiting.append(output)

    def _is_view(self, output: str, name: str) -> bool:
        digest = self._digests.get(output)
        return digest is not None and digest.has_values_of(self._digests[name])

    def _slice(self, positions: Sequence[int]) -> set[int]:
        """Return the nodes between the values of some calls and the values of all others."""
        own = set(positions)
        nodes: set[int] = set()
        waiting = [name for position in positions for name in self._values[position]]
        while waiting:
            number = self._producers[waiting.pop()]
            if number in nodes:
                continue
            nodes.add(number)
            for name in self._nodes[number].inputs:
                producer = self._producers.get(name)
                if producer is None or not self._ancestors[producer]:
                    continue  # an input or a constant
                if name not in self._writers or self._writers[name] in own:
                    waiting.append(name)
        return nodes


def _ancestors(graph: ObservedGraph, producers: dict[str, int]) -> list[int]:
    """Return the nodes that each node depends on, itself included, as bits; 0 for a constant."""
    inputs = set(graph.inputs)
    ancestors: list[int] = []
    for number, node in enumerate(graph.nodes):
        ancestors.append(_depends_on(node, number, inputs, ancestors, producers))
    return ancestors


def _depends_on(
    node: GraphNode,
    number: int,
    inputs: set[str],
    ancestors: Sequence[int],
    producers: dict[str, int],
) -> int:
    if node.operator in _SHAPES:
        return 0
    bits = 0
    is_constant = True
    for name in node.inputs:
        producer = producers.get(name)
        before = ancestors[producer] if producer is not None else 0
        bits |= before
        is_constant = is_constant and not before and name not in inputs
    return 0 if is_constant else bits | 1 << number
