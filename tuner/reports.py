"""Tables as JSON."""

from typing import Any

from tuner.overview import Overview


def rows_as_json(overview: Overview) -> list[dict[str, Any]]:
    """Return the rows of a task scheduler table as plain data."""
    return [
        {
            "id": index,
            "workload": row.workload,
            "name": row.name,
            "weight": row.weight,
            "flop": row.flop,
            "latency_secs": row.latency,
            "gflops": row.gflops,
            "trials": row.n_trials,
            "failed": row.n_failed,
            "share": row.share,
            "exhausted": row.exhausted,
        }
        for index, row in enumerate(overview.rows)
    ]
