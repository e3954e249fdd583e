"""Graphs of many launches in which a kernel is timed as networks run it.

The process that tunes on a GPU and the runner of packs, which has no TVM, time alike.
"""

import math

#: Launches of a graph, at least.
MIN_LAUNCHES = 4
# Time of the launches of a graph, seconds, and their number. With copies of weights, a graph has a
# launch for each, unless that takes too long.
_GRAPH_SECS, _MAX_GRAPH_SECS, _MAX_LAUNCHES = 3e-4, 3e-3, 40
# Copies of the weights fill the second-level cache this many times, within a limit.
_L2_FILLS, _MAX_COPIES = 2.5, 256
# Share of the second-level cache up to which the weights of a network stay there: activations take
# the rest, and its halves hold what both read twice.
_KEPT_SHARE = 0.5


def stays_cached(network_bytes: float, l2_bytes: int) -> bool:
    """Return whether the second-level cache keeps the weights of a network."""
    return network_bytes <= _KEPT_SHARE * l2_bytes


def n_weight_copies(n_bytes: int, l2_bytes: int) -> int:
    """Return the copies of weights of this size, itself included, that no cache holds."""
    return min(math.ceil(_L2_FILLS * l2_bytes / n_bytes), _MAX_COPIES)


def n_fitting(secs: float) -> int:
    """Return the launches of this time that fit the longest graph."""
    return _number(_MAX_GRAPH_SECS, secs)


def n_launches(secs: float, n_sets: int, n_least: int = MIN_LAUNCHES) -> int:
    """Return the launches of a graph.

    Args:
        secs: Time of a launch.
        n_sets: Sets of arguments that take turns.
        n_least: Launches that it has at least.
    """
    n_short = min(max(_number(_GRAPH_SECS, secs), n_least), _MAX_LAUNCHES)
    return max(n_short, min(n_sets, n_fitting(secs)))


def _number(limit: float, secs: float) -> int:
    return int(limit / max(secs, 1e-7))
