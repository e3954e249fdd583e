"""The check of a library against limits of its coverage, its latency, and a slowdown."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any, Literal

from tuner.compile.bench.bench_model import (
    Called,
    choose_run,
    draw_inputs,
    padded,
    read_inputs,
    require_comparable,
    without_constants,
)
from tuner.compile.bench.bench_runtimes import LibraryRuns, in_turns
from tuner.compile.bench.benchmark import gpu_locked
from tuner.compile.bench.comparison import Samples
from tuner.devices.locks import device_lock
from tuner.devices.target_matching import kind_named
from tuner.errors import RequestError
from tuner.files.process_folder import shared_folder
from tuner.library import manifest
from tuner.library.arrays import write_arrays
from tuner.library.manifest import Manifest, Program, SubgraphEntry
from tuner.settings import Settings
from tuner.workers.confinement.sandbox_paths import timing_access
from tuner.workers.factory import fresh_worker

Outcome = Literal["passed", "failed", "undecided"]
#: Exit status of a check whose limit is exceeded, by its name, and of one that noise left open.
EXIT_CODES: Mapping[str, int] = {"coverage": 3, "latency": 4, "slowdown": 4}
UNDECIDED = 5
#: Fewer turns have no interval that contains the median in 95 of 100 checks.
MIN_TURNS = 8

# Turns are added as long as noise leaves a limit open, at most up to this multiple of them; limits
# are looked at after each.
_MAX_EXTENSION = 4
# Probability that the interval of one look does not contain the median: those of all looks contain
# it in 95 of 100 checks.
_RISK = 0.05 / _MAX_EXTENSION


@dataclass(frozen=True)
class CheckRequest:
    """Limits of a check, and the runs that they refer to.

    Attributes:
        min_coverage: Smallest share of the subgraphs that have a record, from 0 to 1.
        max_secs: Largest median latency; None for no limit.
        baseline: Library to be compared with in turns; None for none.
        max_slowdown: Largest increase of the median latency over the baseline, as a share.
        shapes: Shapes of inputs, to choose a program of several; by default the first.
        arrays: File with an array for each input; None to draw them.
        n_turns: Number of turns before noise adds more.
        seed: Seed of the inputs that are drawn.
    """

    min_coverage: float = 1.0
    max_secs: float | None = None
    baseline: Path | None = None
    max_slowdown: float = 0.03
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    arrays: Path | None = None
    n_turns: int = 12
    seed: int = 0

    @property
    def times(self) -> bool:
        """True if the library has to run."""
        return self.max_secs is not None or self.baseline is not None


@dataclass(frozen=True)
class Finding:
    """Outcome of one limit.

    Attributes:
        name: ``coverage``, ``latency`` or ``slowdown``.
        outcome: Undecided if the interval contains the limit.
        value: Measured value: a share, or seconds.
        interval: Interval that contains the median of the value in 95 of 100 checks, whenever the
            check ended; None for a value that is counted.
    """

    name: str
    outcome: Outcome
    value: float
    limit: float
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Timing:
    """Latency of a library over all turns, seconds.

    Attributes:
        name: ``library`` or ``baseline``.
        turns: Latency of each run of each turn.
    """

    name: str
    turns: tuple[Samples, ...]

    @property
    def samples(self) -> Samples:
        """Latency of each run."""
        return tuple(sample for turn in self.turns for sample in turn)

    @property
    def median_secs(self) -> float:
        """Median over the turns of the median of a turn, to which limits apply."""
        return median(map(median, self.turns))

    @property
    def mean_secs(self) -> float:
        """Mean latency."""
        return fmean(self.samples)

    @property
    def p90_secs(self) -> float:
        """Latency that nine of ten runs do not exceed."""
        return self._percentile(90)

    @property
    def p99_secs(self) -> float:
        """Latency that 99 of 100 runs do not exceed."""
        return self._percentile(99)

    @property
    def runs_per_sec(self) -> float:
        """Throughput of one run after the other."""
        return 1.0 / self.mean_secs

    def _percentile(self, number: int) -> float:
        return quantiles(self.samples, n=100, method="inclusive")[number - 1]


@dataclass(frozen=True)
class Checked:
    """Outcome of a check.

    Attributes:
        described: Manifest of the library.
        program: Program of the library that was checked.
        findings: Outcome of each limit.
        timings: Latencies of the library and the baseline; empty if nothing ran.
        n_turns: Number of turns; 0 if nothing ran.
    """

    described: Manifest
    program: Program
    findings: tuple[Finding, ...]
    timings: tuple[Timing, ...] = ()
    n_turns: int = 0

    @property
    def untuned(self) -> tuple[SubgraphEntry, ...]:
        """Subgraphs without a record."""
        return tuple(entry for entry in self.described.subgraphs if entry.record is None)

    @property
    def exit_code(self) -> int:
        """Exit status: 3 for coverage, 4 for latency, 5 for noise, in this order; 0 if all pass."""
        failed = [EXIT_CODES[each.name] for each in self.findings if each.outcome == "failed"]
        undecided = [UNDECIDED for each in self.findings if each.outcome == "undecided"]
        return min(failed + undecided, default=0)


def check_library(settings: Settings, folder: Path, request: CheckRequest) -> Checked:
    """Check a library; it runs only if a limit is about its latency.

    The library and the baseline take turns, as the runtimes of a benchmark do. A limit of a latency
    is exceeded or kept if the whole interval of the median over the turns is above or below it.
    Turns are added while the interval contains the limit.

    Raises:
        RequestError: If a library is missing or damaged, or the baseline takes other inputs or is
            of another kind of target.
    """
    described = _read(folder)
    shapes, arrays = without_constants(
        described, request.shapes, read_inputs(request.arrays) if request.arrays else None
    )
    program, called = choose_run(described, shapes, arrays)
    checked = Checked(described, program, (_coverage(described, request.min_coverage),))
    if not request.times:
        return checked
    libraries = [(folder, described)]
    if request.baseline is not None:
        own = Called(folder, described.target, called)
        libraries.append((request.baseline, _baseline(request.baseline, own)))
    is_gpu = kind_named(described.target) == "cuda"
    with (
        tempfile.TemporaryDirectory(dir=shared_folder()) as scratch,
        device_lock(settings.data_dir),
        gpu_locked("cuda" if is_gpu else "cpu"),
        ExitStack() as stack,
    ):
        inputs = draw_inputs(called, request.seed) if arrays is None else dict(arrays)
        runs = []
        for number, (path, library) in enumerate(libraries):
            file = Path(scratch) / f"inputs-{number}.npz"
            write_arrays(file, padded(library, inputs))
            with_engine = settings.with_engine(library.engine)
            worker = stack.enter_context(
                fresh_worker(with_engine, f"check-{number}", timing_access(path))
            )
            has_tail = library.tail is not None
            runs.append(
                LibraryRuns(worker, with_engine.engine, path.absolute(), file, has_tail=has_tail)
            )
        return _time(checked, runs, request)


def _time(checked: Checked, runs: Sequence[LibraryRuns], request: CheckRequest) -> Checked:
    """Run the libraries in turns until every limit is decided, or no more turns may be added."""
    turns: list[list[Samples]] = [[] for _ in runs]
    while True:
        for own, samples in zip(turns, in_turns(runs, request.n_turns), strict=True):
            size = len(samples) // request.n_turns
            own += [samples[start : start + size] for start in range(0, len(samples), size)]
        findings = tuple(latency_findings(turns, request))
        is_open = any(each.outcome == "undecided" for each in findings)
        if not is_open or len(turns[0]) >= _MAX_EXTENSION * request.n_turns:
            break
    return replace(
        checked,
        findings=checked.findings + findings,
        timings=tuple(
            Timing(name, tuple(own))
            for name, own in zip(("library", "baseline"), turns, strict=False)
        ),
        n_turns=len(turns[0]),
    )


def latency_findings(turns: Sequence[Sequence[Samples]], request: CheckRequest) -> list[Finding]:
    """Decide the limits of latencies.

    Args:
        turns: Latency of each run of each turn, of the library and, if the request has one, of the
            baseline, seconds.
    """
    medians = [[median(samples) for samples in own] for own in turns]
    findings = []
    if request.max_secs is not None:
        findings.append(finding("latency", medians[0], request.max_secs))
    if request.baseline is not None:
        slowdowns = [now / then - 1.0 for now, then in zip(*medians, strict=True)]
        findings.append(finding("slowdown", slowdowns, request.max_slowdown))
    return findings


def finding(name: str, values: Sequence[float], limit: float) -> Finding:
    """Return the outcome of a limit by the values of turns."""
    low, high = median_interval(values)
    outcome: Outcome = "failed" if low > limit else "passed" if high <= limit else "undecided"
    return Finding(name, outcome, median(values), limit, (low, high))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of order statistics that contains the median but for the risk of a look.

    Independent values lie below the median as a coin falls, whatever their distribution.
    With fewer than eight values it is the range of them, which is less certain.
    """
    ordered, n = sorted(values), len(values)
    rank, tail = 0, 0.5**n
    while 2.0 * (tail + math.comb(n, rank + 1) * 0.5**n) <= _RISK:
        rank += 1
        tail += math.comb(n, rank) * 0.5**n
    return ordered[rank], ordered[n - 1 - rank]


def _coverage(described: Manifest, limit: float) -> Finding:
    n_subgraphs = len(described.subgraphs)
    share = (n_subgraphs - described.n_fallbacks) / n_subgraphs if n_subgraphs else 1.0
    return Finding("coverage", "passed" if share >= limit else "failed", share, limit)


def _baseline(folder: Path, library: Called) -> Manifest:
    """Read the baseline of a library.

    Raises:
        RequestError: If it is of another kind of target, or takes other inputs.
    """
    described = _read(folder)
    try:
        shapes = {name: shape for name, (shape, _) in library.inputs.items()}
        _, inputs = choose_run(described, shapes, None)
    except RequestError:
        inputs = described.inputs
    require_comparable(Called(folder, described.target, inputs), library, field="baseline")
    return described


def _read(folder: Path) -> Manifest:
    described = manifest.read(folder)
    manifest.verify(folder, described)
    return described


def as_json(checked: Checked) -> dict[str, Any]:
    """Return the outcome of a check as plain data."""
    names = ("median_secs", "mean_secs", "p90_secs", "p99_secs", "runs_per_sec")
    return {
        "model": checked.described.model_name,
        "exit_status": checked.exit_code,
        "findings": [vars(each) for each in checked.findings],
        "untuned": [
            {"workload": entry.workload, "name": entry.name, "n_calls": entry.n_calls}
            for entry in checked.untuned
        ],
        "n_subgraphs": len(checked.described.subgraphs),
        "turns": checked.n_turns,
        "timings": [
            {
                "name": timing.name,
                **{name: getattr(timing, name) for name in names},
                "samples": timing.samples,
            }
            for timing in checked.timings
        ],
    }
