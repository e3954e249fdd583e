"""The profile of a library as a table with notes."""

from rich.table import Table

from tuner.cli.console import stdout_console
from tuner.formatting import DASH, count, milliseconds, percent, throughput
from tuner.profiling.results import KernelProfile, LibraryProfile
from tuner.profiling.verdicts import MEANINGS

_COLUMNS = ("Subgraph", "Calls", "Time\n(ms)", "Share", "Record\n(ms)", "GFLOPS", "Roof", "Trials")
# Timers that take more of a run than this make short kernels look long.
_MAX_OVERHEAD = 0.05


def show_profile(profile: LibraryProfile) -> None:
    """Print a row for each subgraph, the slowest first, then the sums and what would help."""
    console = stdout_console()
    console.print(_table(profile))
    n_calls = len(profile.calls)
    lines = [
        f"run         {milliseconds(profile.median_secs)} ms, median of {profile.n_runs}; "
        f"{milliseconds(profile.plain_secs)} ms without timers",
        f"between     {milliseconds(profile.between_secs)} ms between {n_calls} kernel calls "
        f"({percent(profile.between_secs / profile.median_secs)})",
    ]
    for peer in profile.peers:
        others = peer.secs - peer.matched_secs
        lines.append(
            f"{peer.name:<11} {milliseconds(peer.secs)} ms in {len(peer.nodes)} nodes; "
            f"{milliseconds(others)} ms of them match no subgraph"
        )
    lines += [f"{kind:<11} {reason}" for kind, reason in _legend(profile).items()]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for line in _advice(profile):
        console.print(
            f"note: {line}", style="yellow", highlight=False, markup=False, soft_wrap=True
        )


def _table(profile: LibraryProfile) -> Table:
    table = Table(box=None, pad_edge=False)
    peers = [f"{peer.name}\n(ms)" for peer in profile.peers]
    for number, name in enumerate((*_COLUMNS, *peers, "Verdict")):
        is_text = number == 0 or name == "Verdict"
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    for kernel in profile.kernels:
        times = [milliseconds(peer.by_workload.get(kernel.workload)) for peer in profile.peers]
        table.add_row(*_cells(kernel), *times, kernel.verdict.kind)
    return table


def _cells(kernel: KernelProfile) -> tuple[str, ...]:
    return (
        kernel.name,
        count(kernel.n_calls),
        milliseconds(kernel.secs),
        percent(kernel.share),
        milliseconds(kernel.record_secs),
        throughput(kernel.gflops),
        DASH if kernel.roof_share is None else f"{kernel.roof_share:.0%}",
        count(kernel.n_trials),
    )


def _legend(profile: LibraryProfile) -> dict[str, str]:
    """Return the meaning of each kind of verdict in the table."""
    return {kernel.verdict.kind: MEANINGS[kernel.verdict.kind] for kernel in profile.kernels}


def _advice(profile: LibraryProfile) -> list[str]:
    """Return the commands that would help, with the share of the run that they are about."""
    shares: dict[str, float] = {}
    for kernel in profile.kernels:
        if kernel.verdict.command:
            shares[kernel.verdict.command] = shares.get(kernel.verdict.command, 0.0) + kernel.share
    lines = [
        f"{percent(share)} of the run could gain from `{command}`"
        for command, share in shares.items()
    ]
    overhead = profile.median_secs / profile.plain_secs - 1.0
    if overhead > _MAX_OVERHEAD:
        lines.append(
            f"runs with timers took {percent(overhead)} longer than those without: other "
            "processes use this machine, or the kernels are very short"
        )
    return lines
