"""Records of other versions, as a build tells of them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from tuner.formatting import milliseconds
from tuner.jobs.stale_records import Differences, StaleBest


def as_json(stale: Sequence[StaleBest]) -> list[dict[str, Any]]:
    """Return what ``--json`` prints of them."""
    return [
        {
            "workload": each.workload,
            "name": each.name,
            "weight": each.weight,
            "record": each.record,
            "latency_secs": each.latency,
            "target": each.target_id,
            "device": each.device,
            "foreign": each.foreign,
            "differs": {name: list(pair) for name, pair in each.differs.items()},
        }
        for each in stale
    ]


def table_of(stale: Sequence[StaleBest]) -> Table:
    """Render them, what matters most first."""
    table = Table(title="Records of other versions", title_justify="left")
    for name in ("Workload", "Task", "Weight", "Record", "Latency (ms)", "Differs"):
        numeric = name in ("Weight", "Record", "Latency (ms)")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=name == "Workload")
    for each in stale:
        table.add_row(
            each.workload,
            Text(each.name),
            str(each.weight),
            str(each.record),
            milliseconds(each.latency),
            Text(explain(each.differs)),
        )
    return table


def notes(stale: Sequence[StaleBest], n_subgraphs: int, model: str = "MODEL") -> list[str]:
    """Say in a line for each difference how many subgraphs it keeps from their records."""
    groups = Counter((each.foreign, explain(each.differs)) for each in stale)
    return [
        f"{count} of {n_subgraphs} subgraphs have records of another "
        f"{'device' if foreign else 'version'} only ({text}): "
        f"tuner records verify {model} --top {len(stale)} measures them again"
        for (foreign, text), count in sorted(groups.items())
    ]


def explain(differs: Differences) -> str:
    """Say what differs, as ``tvm 0.26.0 -> 0.27.0``."""
    return ", ".join(
        f"{name} {'none' if there is None else there} -> {'none' if here is None else here}"
        for name, (there, here) in differs.items()
    )
