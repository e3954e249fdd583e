"""Rank of the candidates in the search compared with that in the final of their task.

Reads the databases that ``benchmarks.versus`` or a tuner left, and prints a JSON line for each: in
how many races the final chose another winner, Spearman's rank correlation between the latencies of
search and final, and what the winners of the search would cost the network.

    python -m benchmarks.finals build/versus/*/data/records.db
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import correlation, fmean, median
from typing import Any

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from records import database
from records.models import MeasureRecord, NetworkTask

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
    rivals: dict[int, list[MeasureRecord]] = defaultdict(list)
    engine = database.connect_existing(f"sqlite:///{file}")
    with Session(engine) as session:
        weights = {row.task_id: row.weight for row in session.scalars(select(NetworkTask))}
        stmt = select(MeasureRecord).where(MeasureRecord.confirmed_secs.is_not(None))
        for record in session.scalars(stmt.order_by(MeasureRecord.id)):
            rivals[record.task_id].append(record)
    engine.dispose()
    return [
        Race(
            weights.get(task_id, 1),
            [_secs(record.run_secs, record.clock_factor) for record in records],
            [_secs(record.confirmed_secs, record.confirmed_factor) for record in records],
        )
        for task_id, records in rivals.items()
        if len(records) > 1
    ]


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


def _secs(samples: Sequence[float] | None, clock_factor: float | None) -> float:
    return median(samples or ()) * (clock_factor or 1.0)


if __name__ == "__main__":
    main()
