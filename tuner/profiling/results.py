"""The profile of a library: its kernels, its calls and its peers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tuner.formatting import milliseconds, percent
from tuner.peers.base import PeerNode
from tuner.profiling.peer_profile import PeerProfile, SharedWork
from tuner.profiling.verdicts import Verdict
from tuner.tables import Rows, Shown, table

if TYPE_CHECKING:
    from pandas import DataFrame


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
        flop: Operations of one call.
        n_bytes: Bytes that one call must read and write, each once; 0 if unknown.
        n_threads: Threads that share one call; None if unknown.
        variant: Variant that it was built as, with or without a record; empty for the workload
            itself.
        nodes: Nodes of the ONNX model that its calls compute, some together with other kernels
            (see :class:`CallProfile`); empty if unknown.
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
    flop: float
    n_bytes: int
    n_threads: int | None
    variant: str
    nodes: tuple[str, ...]
    gflops: float
    roof_share: float | None
    n_trials: int | None
    verdict: Verdict


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
        peers: Profiles of other runtimes.
        nodes_problem: Reason why the nodes of the calls are unknown; empty if they are not.
        tail: The operators after the library, which are not profiled; empty without them.
    """

    model_name: str
    n_runs: int
    median_secs: float
    plain_secs: float
    between_secs: float
    kernels: tuple[KernelProfile, ...]
    calls: tuple[CallProfile, ...]
    n_threads: int
    peers: tuple[PeerProfile, ...] = ()
    nodes_problem: str = ""
    tail: str = ""

    def peer_secs(self, peer: PeerProfile) -> dict[str, float]:
        """Return the seconds that a peer takes for the same nodes, by workload, where known."""
        return peer.by_workload([call.workload for call in self.calls])

    def shared_work(self, peer: PeerProfile) -> list[NodeTimes]:
        """Return the work of library and peer, the largest loss of the library first."""
        return [
            NodeTimes(
                kernels=tuple(dict.fromkeys(self.calls[call].name for call in work.calls)),
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
        return Rows(self.kernels).to_pandas()

    def summary(self) -> str:
        """Return the time of a run and what takes most of it."""
        slowest = max(self.kernels, key=lambda kernel: kernel.secs, default=None)
        most = f"; {percent(slowest.share)} in {slowest.name}" if slowest else ""
        return (
            f"{self.model_name}: {milliseconds(self.plain_secs)} ms, {len(self.calls)} kernel "
            f"calls{most}"
        )

    def _table(self) -> str:
        titles = ("Subgraph", "Calls", "Time (ms)", "Share", "Record (ms)", "Roof", "Verdict")
        rows = [
            (
                kernel.name,
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
        TypeError, KeyError: If another version of the tuner wrote it.
    """
    return LibraryProfile(
        **{
            **content,
            "kernels": tuple(
                KernelProfile(
                    **{
                        **kernel,
                        "nodes": tuple(kernel["nodes"]),
                        "verdict": Verdict(**kernel["verdict"]),
                    }
                )
                for kernel in content["kernels"]
            ),
            "calls": tuple(
                CallProfile(
                    **{
                        **call,
                        "nodes": tuple(call["nodes"]),
                        "with_calls": tuple(call["with_calls"]),
                    }
                )
                for call in content["calls"]
            ),
            "peers": tuple(map(_peer, content["peers"])),
        }
    )


def _peer(content: Mapping[str, Any]) -> PeerProfile:
    return PeerProfile(
        name=content["name"],
        version=content["version"],
        nodes=tuple(
            PeerNode(**{**node, "origins": tuple(node["origins"])}) for node in content["nodes"]
        ),
        shared=tuple(
            SharedWork(
                **{**work, "calls": tuple(work["calls"]), "peer_nodes": tuple(work["peer_nodes"])}
            )
            for work in content["shared"]
        ),
    )
