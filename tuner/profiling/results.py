"""The profile of a library: its kernels, its calls and its peers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from tuner.formatting import milliseconds, percent, told_apart
from tuner.library.manifest import Inputs
from tuner.profiling.peer_profile import PeerProfile
from tuner.profiling.verdicts import UNJUDGED, KernelFacts, NetworkFacts, Verdict, judge
from tuner.tables import Rows, Shown, table

if TYPE_CHECKING:
    from pandas import DataFrame
    from pydantic import TypeAdapter

OTHER_KERNELS = "other kernels"


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
        nodes: Nodes of the ONNX model that it computes; empty if unknown.
        with_calls: Positions of the calls that compute these nodes together with it.
        n_runs: Runs of the workload, one after the other, in the call.
    """

    kernel: str
    workload: str
    name: str
    start_secs: float
    secs: float
    gap_secs: float
    nodes: tuple[str, ...] = ()
    with_calls: tuple[int, ...] = ()
    n_runs: int = 1


@dataclass(frozen=True)
class KernelProfile:
    """All calls of one subgraph in the network.

    Attributes:
        name: Operators and output shape.
        workload: Hash of the workload; empty for the kernels that are not subgraphs.
        n_calls: Number of calls, one for each step of a recurrent layer.
        secs: Sum of the median durations of the calls, seconds.
        share: Their share of the calls and of the time between them.
        record_secs: Latency of the record times the calls, seconds; None without a record.
        n_threads: Threads that share one call; None if unknown.
        variant: Variant that it was built as, with or without a record; empty for the workload
            itself.
        nodes: Nodes of the ONNX model that its calls compute, some together with other kernels
            (see :class:`CallProfile`); empty if unknown.
        turn_secs: Median of :attr:`secs` in each turn of the profile, seconds.
        trace: Hash of its record's trace; empty without a record.
        code: Hash of its compiled code; empty for kernels that are not subgraphs.
        flop: Operations of one call.
        n_bytes: Bytes that one call must read and write, each once; 0 if unknown.
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
    n_threads: int | None
    variant: str
    nodes: tuple[str, ...]
    turn_secs: tuple[float, ...]
    trace: str = ""
    code: str = ""
    flop: float = 0.0
    n_bytes: int = 0
    gflops: float = 0.0
    roof_share: float | None = None
    n_trials: int | None = None
    verdict: Verdict = UNJUDGED

    def judged(self, facts: KernelFacts, tune: str) -> "KernelProfile":
        """Return the profile with a verdict by the facts of a database.

        Args:
            facts: Facts about the subgraph.
            tune: Command that tunes the network further.
        """
        each = self.secs / self.n_calls
        record_secs = None if self.record_secs is None else self.record_secs / self.n_calls
        return replace(
            self,
            flop=facts.flop,
            n_bytes=facts.n_bytes,
            gflops=facts.flop / each / 1e9 if each > 0.0 else 0.0,
            roof_share=facts.roof_secs / each if facts.roof_secs and each > 0.0 else None,
            n_trials=facts.n_trials,
            verdict=judge(facts, each, record_secs, tune, is_subgraph=self.name != OTHER_KERNELS),
        )


@dataclass(frozen=True)
class NodeTimes:
    """Nodes that library and peer compute, and the kernels that do; times are seconds."""

    kernels: tuple[str, ...]
    nodes: tuple[str, ...]
    secs: float
    peer_secs: float

    @property
    def loss(self) -> float:
        """Seconds that the library takes longer; negative if it is faster."""
        return self.secs - self.peer_secs


@dataclass(frozen=True, repr=False)
class LibraryProfile(Shown):
    """The times of a library and its kernels; all are seconds.

    Attributes:
        model_name: Name of the network.
        n_runs: Number of profiled runs.
        median_secs: Median duration of a profiled run.
        plain_secs: Median duration of a run without timers, taken between the profiled ones.
        between_secs: Median time of a run that no kernel takes.
        kernels: Subgraphs, the slowest first.
        calls: Calls in the order of the network.
        n_threads: Threads of the library and of each peer.
        inputs: Shape and dtype of each input of the runs.
        peers: Profiles of other runtimes.
        nodes_problem: Reason why the nodes of the calls are unknown; empty if they are not.
        tail: The operators after the library, which are not profiled; empty without them.
        network: Hash of the network; see :func:`tuner.jobs.preparation.network_key`.
        device: Fingerprint of the device that the library was built for.
        compiler: Versions that built the library.
        versions: Versions on the machine of the profile that time may depend on.
        turn_secs: Median duration of a run without timers in each turn.
        roof_problem: Reason why the database knows no roofs; empty if it does.
    """

    model_name: str
    n_runs: int
    median_secs: float
    plain_secs: float
    between_secs: float
    kernels: tuple[KernelProfile, ...]
    calls: tuple[CallProfile, ...]
    n_threads: int
    inputs: Inputs
    peers: tuple[PeerProfile, ...] = ()
    nodes_problem: str = ""
    tail: str = ""
    network: str = ""
    target: str = ""
    device: Mapping[str, Any] = field(default_factory=dict)
    compiler: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    turn_secs: tuple[float, ...] = ()
    roof_problem: str = ""

    def judged(self, facts: NetworkFacts, tune: str) -> "LibraryProfile":
        """Return the profile with verdicts by the facts of a database.

        Args:
            facts: Facts about the subgraphs.
            tune: Command that tunes the network further.
        """
        kernels = (
            kernel.judged(facts.kernels.get(kernel.workload, KernelFacts()), tune)
            for kernel in self.kernels
        )
        return replace(self, kernels=tuple(kernels), roof_problem=facts.roof_problem)

    @cached_property
    def names(self) -> dict[str, str]:
        """Names of the kernels by workload, those that repeat with a part of the hash."""
        workloads = [kernel.workload for kernel in self.kernels]
        names = told_apart([kernel.name for kernel in self.kernels], workloads)
        return dict(zip(workloads, names, strict=True))

    def gains(self) -> dict[str, float]:
        """Return the share of the run that each command of a verdict is about."""
        shares: dict[str, float] = {}
        for kernel in self.kernels:
            if command := kernel.verdict.command:
                shares[command] = shares.get(command, 0.0) + kernel.share
        return shares

    def peer_secs(self, peer: PeerProfile) -> dict[str, float]:
        """Return the seconds that a peer takes for the same nodes, by workload, where known."""
        return peer.by_workload([call.workload for call in self.calls])

    def shared_work(self, peer: PeerProfile) -> list[NodeTimes]:
        """Return the work of library and peer, the largest loss of the library first."""
        names = [self.names.get(call.workload, call.name) for call in self.calls]
        return [
            NodeTimes(
                kernels=tuple(dict.fromkeys(names[call] for call in work.calls)),
                nodes=tuple(
                    dict.fromkeys(name for call in work.calls for name in self.calls[call].nodes)
                ),
                secs=work.secs,
                peer_secs=work.peer_secs,
            )
            for work in peer.shared
        ]

    def losses(self, peer: PeerProfile) -> list[NodeTimes]:
        """Return the work that the library does more slowly, the largest loss first."""
        return [work for work in self.shared_work(peer) if work.loss > 0.0]

    def to_pandas(self) -> "DataFrame":
        """Return the kernels as a data frame; see :meth:`tuner.tables.Rows.to_pandas`."""
        kinds = [kernel.verdict.kind for kernel in self.kernels]
        return Rows(self.kernels).to_pandas().assign(verdict=kinds)

    def summary(self) -> str:
        """Return the time of a run and what takes most of it."""
        slowest = max(self.kernels, key=lambda kernel: kernel.secs, default=None)
        most = f"; {percent(slowest.share)} in {slowest.name}" if slowest else ""
        return (
            f"{self.model_name}: {milliseconds(self.plain_secs)} ms, {len(self.calls)} kernel "
            f"calls{most}"
        )

    def _table(self) -> str:
        names = self.names
        titles = ("Subgraph", "Calls", "Time (ms)", "Share", "Record (ms)", "Roof", "Verdict")
        rows = [
            (
                names[kernel.workload],
                str(kernel.n_calls),
                milliseconds(kernel.secs),
                percent(kernel.share),
                milliseconds(kernel.record_secs),
                percent(kernel.roof_share),
                f"{kernel.verdict.kind}: {kernel.verdict.reason}",
            )
            for kernel in self.kernels
        ]
        return table(titles, rows)


@dataclass(frozen=True)
class StoredProfile:
    """A profile of a database, and the time at which it was stored."""

    created: datetime
    profile: LibraryProfile


def as_json(profile: LibraryProfile) -> dict[str, Any]:
    """Return a profile as plain data."""
    plain: dict[str, Any] = asdict(profile)
    for peer, described in zip(profile.peers, plain["peers"], strict=True):
        described["secs"] = peer.secs
        described["matched_secs"] = peer.matched_secs
        described["by_workload"] = profile.peer_secs(peer)
        described["same_nodes"] = [asdict(work) for work in profile.shared_work(peer)]
    return plain


def from_json(content: Mapping[str, Any]) -> LibraryProfile:
    """Return the profile of plain data.

    Raises:
        ValueError: If it is not the profile of this version of the tuner.
    """
    return _adapter().validate_python(content)


@cache
def _adapter() -> "TypeAdapter[LibraryProfile]":
    from pydantic import TypeAdapter

    return TypeAdapter(LibraryProfile)
