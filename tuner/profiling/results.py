"""The profile of a library: its kernels, its calls and its peers."""

from dataclasses import asdict, dataclass
from typing import Any

from tuner.profiling.peer_profile import PeerProfile
from tuner.profiling.verdicts import Verdict


@dataclass(frozen=True)
class CallProfile:
    """A kernel call in the network; times are seconds.

    Attributes:
        kernel: Name of the call.
        workload: Hash of the workload; empty for a kernel that is not a subgraph.
        name: Subgraph that it computes; the kernel's own name for one that is not a subgraph.
        start_secs: Median start after the start of the run.
        secs: Median duration.
        gap_secs: Median time since the call before it ended, or since the start of the run.
    """

    kernel: str
    workload: str
    name: str
    start_secs: float
    secs: float
    gap_secs: float


@dataclass(frozen=True)
class KernelProfile:
    """All calls of one subgraph in the network.

    Attributes:
        name: Operators and output shape.
        workload: Hash of the workload; empty for the kernels that are not subgraphs.
        n_calls: Number of calls.
        secs: Median duration of all calls together, seconds.
        share: Their share of the run.
        record_secs: Latency of the record times the calls, seconds; None without a record.
        gflops: Operations per second, in billions; 0 if the subgraph has none.
        roof_share: Share of the roof that the kernel reaches in the network; None if unknown.
        n_trials: Trials of the task so far; None if the database does not know it.
        verdict: Limit of the kernel, and what would help.
    """

    name: str
    workload: str
    n_calls: int
    secs: float
    share: float
    record_secs: float | None
    gflops: float
    roof_share: float | None
    n_trials: int | None
    verdict: Verdict


@dataclass(frozen=True)
class LibraryProfile:
    """The times of a library and its kernels; all are seconds.

    Attributes:
        model_name: Name of the network.
        n_runs: Number of profiled runs.
        median_secs: Median duration of a profiled run.
        plain_secs: Median duration of a run without timers, taken between the profiled ones.
        between_secs: Median time of a run that no kernel takes.
        kernels: Subgraphs, the slowest first.
        calls: Calls in the order of the network.
        peers: Profiles of other runtimes.
    """

    model_name: str
    n_runs: int
    median_secs: float
    plain_secs: float
    between_secs: float
    kernels: tuple[KernelProfile, ...]
    calls: tuple[CallProfile, ...]
    peers: tuple[PeerProfile, ...] = ()


def as_json(profile: LibraryProfile) -> dict[str, Any]:
    """Return a profile as plain data."""
    plain: dict[str, Any] = asdict(profile)
    for peer, described in zip(profile.peers, plain["peers"], strict=True):
        described["secs"] = peer.secs
    return plain
