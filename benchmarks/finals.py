"""Rank of the candidates in the search compared with that in the final of their task.

Reads the databases that ``benchmarks.versus`` or a tuner left, and prints
a JSON line for each: in how many races the final chose another winner, Spearman's rank correlation
between the latencies of search and final, and what the winners of the search would cost.

    python -m benchmarks.finals build/versus/*/data/records.db
"""

import argparse
import json
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import correlation, fmean, median
from typing import Any

import numpy as np

# Fewer rivals have a rank correlation of -1 or 1.
_MIN_RIVALS = 3


@dataclass(frozen=True)
class Race:
    """Rivals of one final.

    Attributes:
        weight: Calls of the kernel in the network.
        search: Latency of each rival in the search, seconds.
        final: Latency of each rival in the final, seconds, in the same order.
    """

    weight: int
    search: Sequence[float]
    final: Sequence[float]

    @property
    def has_new_winner(self) -> bool:
        """True if the fastest of the search is not the fastest of the final."""
        return int(np.argmin(self.search)) != int(np.argmin(self.final))

    @property
    def rank_correlation(self) -> float:
        """Spearman's coefficient, from -1 to 1."""
        return correlation(_ranks(self.search), _ranks(self.final))


def main() -> None:
    """Print a line for each database of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.finals", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("databases", nargs="+", type=Path, metavar="FILE", help="SQLite databases.")
    for file in parser.parse_args().databases:
        print(json.dumps({"benchmark": "finals", "file": str(file), **summarise(races(file))}))


def races(file: Path) -> list[Race]:
    """Return the races of a database between two rivals and more, from their records."""
    rivals: dict[int, list[tuple[float, float]]] = defaultdict(list)
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        weights = dict(connection.execute("SELECT task_id, weight FROM network_task"))
        stmt = (
            "SELECT task_id, run_secs, clock_factor, confirmed_secs, confirmed_factor"
            " FROM measure_record WHERE json_type(confirmed_secs) = 'array' ORDER BY id"
        )
        for task_id, run_secs, factor, confirmed_secs, confirmed_factor in connection.execute(stmt):
            pair = (_secs(run_secs, factor), _secs(confirmed_secs, confirmed_factor))
            rivals[task_id].append(pair)
    return [
        Race(weights.get(task_id, 1), *map(list, zip(*pairs, strict=True)))
        for task_id, pairs in rivals.items()
        if len(pairs) > 1
    ]


def repeated_share(file: Path) -> float:
    """Return the share of timed candidates of which a sample was disturbed and taken again."""
    stmt = (
        "SELECT avg(coalesce(json_extract(conditions, '$.repeated'), 0) > 0) FROM measure_record "
        "WHERE json_type(run_secs) = 'array'"
    )
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        (share,) = connection.execute(stmt).fetchone()
    return round(share or 0.0, 3)


def summarise(finals: Sequence[Race]) -> dict[str, Any]:
    """Return counts, correlations and latencies of races."""
    ranked = [race.rank_correlation for race in finals if len(race.final) >= _MIN_RIVALS]
    searched = sum(race.weight * race.final[int(np.argmin(race.search))] for race in finals)
    final = sum(race.weight * min(race.final) for race in finals)
    return {
        "races": len(finals),
        "new_winners": sum(race.has_new_winner for race in finals),
        "mean_rank_correlation": round(fmean(ranked), 3) if ranked else None,
        "search_winners_ms": round(1e3 * searched, 4),
        "final_winners_ms": round(1e3 * final, 4),
    }


def _ranks(values: Sequence[float]) -> list[int]:
    return [int(rank) for rank in np.argsort(np.argsort(values))]


def _secs(samples: str, clock_factor: float | None) -> float:
    secs: list[float] = json.loads(samples)
    return median(secs) * (clock_factor or 1.0)


if __name__ == "__main__":
    main()
