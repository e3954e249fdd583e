"""Choice of the candidates of a pack: how many of each workload, and which."""

from collections.abc import Collection, Mapping, Sequence
from random import Random

# Candidates that each workload gets first, if there are as many.
_N_EACH = 8
# Share of the candidates that are the first ones by estimate, and the share of the draws that are
# from the better third of the others.
_FIRST, _NEAR = 0.5, 0.5


def share_out(costs: Mapping[str, float], sizes: Mapping[str, int], n: int) -> dict[str, int]:
    """Divide candidates among workloads by the time that each costs in its networks.

    Args:
        costs: Estimated seconds in all networks, by workload.
        sizes: Number of candidates that a workload has.

    Returns:
        Candidates of each workload, at most its size; the cheapest get none if ``n`` is too small.
    """
    shares = dict.fromkeys(costs, 0)
    order = sorted(costs, key=lambda workload: (-costs[workload], workload))
    for workload in order:
        shares[workload] = min(_N_EACH, sizes[workload], n - sum(shares.values()))
    while n_left := n - sum(shares.values()):
        growing = [workload for workload in order if shares[workload] < sizes[workload]]
        if not growing:
            break
        total = sum(costs[workload] for workload in growing)
        for workload in growing:
            share = costs[workload] / total if total else 1 / len(growing)
            free = min(sizes[workload] - shares[workload], n - sum(shares.values()))
            shares[workload] += min(max(int(n_left * share), 1), free)
    return shares


def choose(names: Sequence[str], known: Collection[str], n: int, seed: int) -> list[str]:
    """Return configurations of a workload, in their order: the first ones, and draws.

    Args:
        names: All configurations, the fastest by estimate first.
        known: Configurations that are not chosen.
    """
    fresh = [name for name in names if name not in known]
    n_first = -(-n * _FIRST // 1)
    first, others = fresh[: int(n_first)], fresh[int(n_first) :]
    random = Random(seed)
    near = others[: -(-len(others) // 3)]
    n_drawn = min(n - len(first), len(others))
    drawn = set(random.sample(near, min(int(n_drawn * _NEAR), len(near))))
    rest = [name for name in others if name not in drawn]
    drawn.update(random.sample(rest, n_drawn - len(drawn)))
    return [*first, *(name for name in others if name in drawn)]
