"""Best records of other versions, as a table, as notes and as JSON."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tuner.cli.rendering.grid import Column, Grid
from tuner.formatting import milliseconds, short_name
from tuner.jobs.stale_records import StaleBest
from tuner.jobs.target_relations import Differences

_CLAIMED = "claimed, not measured here"


def as_json(stale: Sequence[StaleBest]) -> list[dict[str, Any]]:
    """Return what ``--json`` prints of the records."""
    return [
        {
            "workload": best.workload,
            "name": best.name,
            "weight": best.weight,
            "record": best.record,
            "latency_secs": best.latency,
            "target": best.target_id,
            "device": best.device,
            "foreign": best.foreign,
            "differs": {name: list(pair) for name, pair in best.differs.items()},
        }
        for best in stale
    ]


def table_of(stale: Sequence[StaleBest]) -> Grid:
    """Render the records in their order, the most important first."""
    table = Grid(
        Column("Workload"),
        Column("Name", "name"),
        Column("Calls", "number", 1),
        Column("Record", "number"),
        Column("Latency (ms)", "number"),
        Column("Differs", "prose"),
        title="Records to verify",
    )
    for best in stale:
        table.add(
            short_name(best.workload),
            best.name,
            str(best.weight),
            str(best.record),
            milliseconds(best.latency),
            differences_in_words(best.differs),
        )
    return table


def notes(stale: Sequence[StaleBest], n_subgraphs: int, verify: str) -> list[str]:
    """Return a line for claims and for each difference, with the number of subgraphs.

    Args:
        stale: Records of other versions.
        verify: Command that measures the records again, without ``--top``.
    """
    groups = Counter((best.foreign, differences_in_words(best.differs)) for best in stale)
    return [
        f"{count} of {n_subgraphs} subgraphs have {_kind(foreign, text)} only; measure them here "
        f"with `{verify} --top {len(stale)}`"
        for (foreign, text), count in sorted(groups.items())
    ]


def _kind(foreign: bool, text: str) -> str:
    if text == _CLAIMED:
        return "claims"
    return f"records of another {'device' if foreign else 'version'} ({text})"


def differences_in_words(differs: Differences) -> str:
    """Return what differs in the form ``tvm 0.26.0 -> 0.27.0``, of targets their attributes."""
    attributes = [_attributes(*pair) for name, pair in differs.items() if name == "target"]
    pairs = {name: pair for name, pair in differs.items() if name not in ("target", "claimed")}
    words = [
        f"{name} {'none' if then is None else then} -> {'none' if now is None else now}"
        for name, (then, now) in [*pairs.items(), *(item for each in attributes for item in each)]
    ]
    return ", ".join([_CLAIMED, *words] if "claimed" in differs else words)


def _attributes(then: str, now: str) -> list[tuple[str, tuple[Any, Any]]]:
    """Return the attributes of two targets that differ; the targets if they are not objects."""
    try:
        there, here = json.loads(then), json.loads(now)
        names = sorted(there.keys() | here.keys())
    except (ValueError, AttributeError):
        return [("target", (then, now))]
    pairs = ((name, (there.get(name), here.get(name))) for name in names)
    return [(name, pair) for name, pair in pairs if pair[0] != pair[1]]
