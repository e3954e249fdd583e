"""The recompiled objects of a library as a table, as lines and as JSON."""

from typing import Any

from rich.text import Text

from tuner.cli.console import print_line, stdout_console
from tuner.cli.rendering.grid import Column, Grid
from tuner.compile.reproduce import RecompiledSubgraph, Reproduction
from tuner.formatting import short_name

_STYLES = {"identical": "green", "differs": "red", "cannot": "yellow"}


def reproduction_as_json(reproduction: Reproduction) -> dict[str, Any]:
    """Return what ``--json`` prints of a reproduction."""
    return {
        "model": reproduction.model,
        "target": reproduction.target,
        "objects": None if reproduction.out is None else str(reproduction.out),
        "identical": reproduction.count("identical"),
        "differing": reproduction.count("differs"),
        "impossible": reproduction.count("cannot"),
        "subgraphs": [
            {
                "name": subgraph.name,
                "workload": subgraph.workload,
                "trace": subgraph.trace,
                "verdict": subgraph.outcome,
                "why": subgraph.why,
                "objects": dict(subgraph.objects),
            }
            for subgraph in reproduction.subgraphs
        ],
    }


def show_reproduction(reproduction: Reproduction) -> None:
    """Print the outcome of each subgraph, and how many are identical."""
    table = Grid(
        Column("Workload"),
        Column("Name", "name"),
        Column("Made from", rank=1),
        Column("Result", "prose"),
        title=f"Objects of {reproduction.model}",
    )
    for subgraph in reproduction.subgraphs:
        source = "no trace" if subgraph.trace is None else f"trace {subgraph.trace[:12]}"
        result = f"{subgraph.outcome}: {subgraph.why}" if subgraph.why else subgraph.outcome
        style = _STYLES[subgraph.outcome]
        workload = short_name(subgraph.workload)
        table.add(workload, subgraph.name, source, Text(result, style))
    console = stdout_console()
    console.print(table)
    counts = f"{reproduction.count('identical')} of {len(reproduction.subgraphs)}"
    kept = "" if reproduction.out is None else f"; their objects are in {reproduction.out}"
    console.print(f"{counts} subgraphs are byte-identical{kept}", highlight=False)


def show_subgraph(subgraph: RecompiledSubgraph) -> None:
    """Print the outcome of one subgraph on stderr."""
    print_line(f"{subgraph.outcome.capitalize()}: {subgraph.name}", to_stderr=True)
