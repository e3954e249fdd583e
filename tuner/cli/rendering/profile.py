"""The profile of a library as a table with notes."""

import shlex
from collections.abc import Mapping

from tuner.cli import hints
from tuner.cli.console import stdout_console
from tuner.cli.rendering.grid import Column, Grid
from tuner.formatting import (
    DASH,
    count,
    counted,
    milliseconds,
    percent,
    throughput,
)
from tuner.profiling.results import KernelProfile, LibraryProfile
from tuner.profiling.verdicts import MEANINGS, UNFINISHED

_COLUMNS = (
    Column("Subgraph", "name"),
    Column("Calls", "number"),
    Column("Thr.", "number", 6),
    Column("Time\n(ms)", "number"),
    Column("Share", "number"),
    Column("Record\n(ms)", "number", 1),
    Column("MFLOP", "number", 5),
    Column("MB", "number", 4),
    Column("GFLOPS", "number", 3),
    Column("Roof", "number", 2),
    Column("Trials", "number"),
)
# Nodes of a subgraph, and losses to a peer, that are shown; all of them are in the JSON.
_MAX_NODES, _MAX_LOSSES = 4, 3
# Share of the run from which a loss to a peer is worth a line.
_MIN_LOSS = 0.02
# Timers that take more of a run than this make short kernels look long.
_MAX_OVERHEAD = 0.05


def show_profile(profile: LibraryProfile, overrides: Mapping[str, object], server: str) -> None:
    """Print a row for each subgraph, the slowest first, their nodes, sums and what would help.

    Args:
        overrides: Settings of the command, for commands on this machine.
        server: URL of the server that the commands are for; empty for none.
    """
    console = stdout_console()
    peers = (Column(f"{peer.name}\n(ms)", "number") for peer in profile.peers)
    table = Grid(*_COLUMNS, *peers, Column("Verdict"), Column("Variant", rank=7))
    peer_secs = [profile.peer_secs(peer) for peer in profile.peers]
    names = profile.names
    for kernel in profile.kernels:
        times = [milliseconds(secs.get(kernel.workload)) for secs in peer_secs]
        table.add(
            names[kernel.workload], *_cells(kernel), *times, kernel.verdict.kind, kernel.variant
        )
    console.print(table)
    for line in _nodes(profile):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    n_calls = len(profile.calls)
    threads = counted(profile.n_threads, "thread")
    lines = [
        f"run         {milliseconds(profile.median_secs)} ms, median of {profile.n_runs}; "
        f"{milliseconds(profile.plain_secs)} ms without timers; {threads}",
        f"between     {milliseconds(profile.between_secs)} ms between {n_calls} kernel calls "
        f"({percent(profile.between_secs / profile.median_secs)})",
    ]
    for peer in profile.peers:
        others = peer.secs - peer.matched_secs
        lines.append(
            f"{peer.name:<11} {milliseconds(peer.secs)} ms in {counted(len(peer.nodes), 'node')}; "
            f"{milliseconds(others)} ms of them match no kernel"
        )
    lines += [
        f"{kind:<11} {reason}"
        for kind, reason in {
            kernel.verdict.kind: MEANINGS[kernel.verdict.kind] for kernel in profile.kernels
        }.items()
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for line in _advice(profile, overrides, server):
        console.print(
            f"note: {line}", style="yellow", highlight=False, markup=False, soft_wrap=True
        )


def _cells(kernel: KernelProfile) -> tuple[str, ...]:
    return (
        count(kernel.n_calls),
        count(kernel.n_threads),
        milliseconds(kernel.secs),
        percent(kernel.share),
        milliseconds(kernel.record_secs),
        f"{kernel.flop / 1e6:,.1f}" if kernel.flop else DASH,
        f"{kernel.n_bytes / 1e6:.2f}" if kernel.n_bytes else DASH,
        throughput(kernel.gflops),
        DASH if kernel.roof_share is None else f"{kernel.roof_share:.0%}",
        count(kernel.n_trials),
    )


def _nodes(profile: LibraryProfile) -> list[str]:
    """Return a line for each subgraph with the first of its nodes."""
    if profile.nodes_problem:
        return []
    lines = ["", "Nodes:"]
    names = profile.names
    for kernel in profile.kernels:
        shown = ", ".join(kernel.nodes[:_MAX_NODES]) or "unknown"
        more = len(kernel.nodes) - _MAX_NODES
        rest = f" and {more} more" if more > 0 else ""
        lines.append(f"  {names[kernel.workload]}: {shown}{rest}")
    return [*lines, ""]


def _advice(profile: LibraryProfile, overrides: Mapping[str, object], server: str) -> list[str]:
    """Return the commands that would help, with the share of the run that they are about."""

    def shown(command: str) -> str:
        if server:
            return f"tuner --server {shlex.quote(server)} {command.removeprefix('tuner ')}"
        return hints.placed(command, overrides)

    gains = profile.gains()
    lines = [
        f"{percent(share)} of the run could gain from `{shown(command)}`"
        for command, share in gains.items()
    ]
    if not gains and any(kernel.verdict.kind in UNFINISHED for kernel in profile.kernels):
        lines.append("more trials could help; give the model to see the command")
    lines += [
        f"{peer.name} takes {milliseconds(loss.peer_secs)} ms instead of "
        f"{milliseconds(loss.secs)} ms for {', '.join(loss.kernels)}"
        for peer in profile.peers
        for loss in profile.losses(peer)[:_MAX_LOSSES]
        if loss.loss >= _MIN_LOSS * profile.median_secs
    ]
    if profile.nodes_problem:
        lines.append(profile.nodes_problem)
    if profile.roof_problem:
        lines.append(f"no roofs: {profile.roof_problem}")
    if profile.tail:
        lines.append(f"not profiled: {profile.tail}")
    overhead = profile.median_secs / profile.plain_secs - 1.0
    if overhead > _MAX_OVERHEAD:
        lines.append(
            f"runs with timers took {percent(overhead)} longer than those without: other "
            "processes use this machine, or the kernels are very short"
        )
    return lines
