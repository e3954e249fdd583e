"""Results of a benchmark: samples of a library, and of each peer that it was compared with."""

from dataclasses import dataclass
from statistics import mean, median, pstdev, quantiles
from typing import Any

from tuner.compile.bench.agreement import OutputCheck
from tuner.formatting import milliseconds
from tuner.tables import Shown, table

Samples = tuple[float, ...]
# Undisturbed, the middle half of the samples lies within a few per cent.
_MAX_SPREAD = 0.25


@dataclass(frozen=True)
class PeerResult:
    """The comparison of a library with one peer.

    Attributes:
        device: ``"cpu"`` or ``"cuda"``, on which the peer ran.
        samples: Samples of the peer, seconds.
        outputs: The comparison of each output, in order.
        ratio: Median latency of the library over that of the peer; below 1 the library is faster.
        note: Time that it took to compile, or the difference between the outputs that were
            compared and those of the timed runs, for people; empty if there is none.
    """

    name: str
    version: str
    device: str
    samples: Samples
    outputs: tuple[OutputCheck, ...]
    ratio: float
    note: str = ""

    @property
    def median_secs(self) -> float:
        """Median of the samples."""
        return median(self.samples)

    @property
    def mean_secs(self) -> float:
        """Mean of the samples."""
        return mean(self.samples)

    @property
    def stdev_secs(self) -> float:
        """Standard deviation of the samples."""
        return pstdev(self.samples)

    @property
    def agrees(self) -> bool:
        """True if every output agrees."""
        return all(output.agrees for output in self.outputs)

    @property
    def n_near_ties(self) -> int:
        """Elements that differ from the peer, and that float64 confirms."""
        return sum(output.n_near_ties for output in self.outputs)

    @property
    def worst(self) -> float:
        """Largest error of all outputs, as a share of its tolerance."""
        return max((output.worst for output in self.outputs), default=0.0)


@dataclass(frozen=True)
class SkippedPeer:
    """A peer without a result: the reason, and what installs it if it is not installed."""

    name: str
    reason: str
    fix: str = ""


@dataclass(frozen=True)
class UsedInput:
    """An input of a benchmark: its shape, its dtype, and its values for people."""

    shape: tuple[int, ...]
    dtype: str
    values: str


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Latency of a library, and its comparison with peers.

    Attributes:
        library_samples: Samples of the library, seconds.
        estimated_secs: Latency according to the records, at the clock that they refer to; None if
            one is missing.
        n_threads: Threads of every runtime.
        device: ``"cpu"`` or ``"cuda"``, on which the library ran.
        inputs: Inputs by name.
        model: The file that the peers ran, for people; empty without peers.
        precision: Coarsest precision that the network computes in; empty without peers.
        skipped: Peers that could have been compared with and were not.
        clock: Speed of the device's clock, relative to the one that the records refer to; None if
            it could not be read.
        tail: The operators that run after the library and are timed with it, for people; empty
            without them.
        launch: Launch of the kernels of the library on a GPU, for people; empty on a CPU.
    """

    library_samples: Samples
    estimated_secs: float | None
    n_threads: int
    device: str
    inputs: dict[str, UsedInput]
    model: str = ""
    precision: str = ""
    peers: tuple[PeerResult, ...] = ()
    skipped: tuple[SkippedPeer, ...] = ()
    clock: float | None = 1.0
    tail: str = ""
    launch: str = ""

    @property
    def estimate_error(self) -> float | None:
        """Error of the estimate at the clock of the comparison, relative to the measured median.

        None if there is no estimate or the clock is unknown.
        """
        if self.estimated_secs is None or self.clock is None:
            return None
        return self.estimated_secs / self.clock / self.library_secs - 1

    @property
    def library_secs(self) -> float:
        """Median of the library's samples."""
        return median(self.library_samples)

    @property
    def mean_secs(self) -> float:
        """Mean of the library's samples."""
        return mean(self.library_samples)

    @property
    def stdev_secs(self) -> float:
        """Standard deviation of the library's samples."""
        return pstdev(self.library_samples)

    @property
    def agrees(self) -> bool:
        """True if the outputs agree with every peer, or there is none."""
        return all(peer.agrees for peer in self.peers)

    @property
    def is_disturbed(self) -> bool:
        """True if the middle half of a runtime's samples spreads over a quarter of their median."""
        runtimes = (self.library_samples, *(peer.samples for peer in self.peers))
        return any(_spread(samples) > _MAX_SPREAD for samples in runtimes)

    @property
    def degenerate(self) -> bool:
        """True if all outputs of the peers are constant, so that agreement proves little."""
        checks = [output for peer in self.peers for output in peer.outputs]
        return bool(checks) and all(check.is_constant for check in checks)

    def peer(self, name: str) -> PeerResult:
        """Return the result of a peer by name.

        Raises:
            KeyError: If there is none.
        """
        return {peer.name: peer for peer in self.peers}[name]

    def summary(self) -> str:
        """Return the medians of all runtimes, and whether the outputs agree."""
        peers = (
            f"; {peer.name} {milliseconds(peer.median_secs)} ms, ratio {peer.ratio:.3f}, "
            f"outputs {'agree' if peer.agrees else 'differ'}"
            for peer in self.peers
        )
        disturbed = "; disturbed by other work" if self.is_disturbed else ""
        return f"library {milliseconds(self.library_secs)} ms{''.join(peers)}{disturbed}"

    def _table(self) -> str:
        times = (self.library_secs, self.mean_secs, self.stdev_secs)
        rows = [("library", *map(milliseconds, times), "", "")]
        for peer in self.peers:
            times = (peer.median_secs, peer.mean_secs, peer.stdev_secs)
            agreement = "agree" if peer.agrees else "differ"
            name = f"{peer.name} {peer.version}"
            rows.append((name, *map(milliseconds, times), f"{peer.ratio:.3f}", agreement))
        titles = ("Runtime", "Median (ms)", "Mean (ms)", "Stdev (ms)", "Ratio", "Outputs")
        return table(titles, rows)


def _spread(samples: Samples) -> float:
    if len(samples) < 2:
        return 0.0
    low, middle, high = quantiles(samples, n=4, method="inclusive")
    return (high - low) / middle


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as plain data, with what follows from its samples."""
    derived = ("median_secs", "mean_secs", "stdev_secs", "agrees", "n_near_ties", "worst")
    return {
        **vars(comparison),
        **{
            name: getattr(comparison, name)
            for name in (
                "library_secs",
                "mean_secs",
                "stdev_secs",
                "agrees",
                "degenerate",
                "is_disturbed",
                "estimate_error",
            )
        },
        "inputs": {name: vars(given) for name, given in comparison.inputs.items()},
        "peers": [
            {
                **vars(peer),
                **{name: getattr(peer, name) for name in derived},
                "outputs": [{**vars(output), "agrees": output.agrees} for output in peer.outputs],
            }
            for peer in comparison.peers
        ],
        "skipped": [vars(skipped) for skipped in comparison.skipped],
    }
