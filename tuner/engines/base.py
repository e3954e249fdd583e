"""The contract between the coordinator and an engine: plain data in, plain data out.

An engine is a module with the functions of :class:`Engine`. They run in worker
processes, are pure functions of their request, and may be called in any worker
any number of times. Nothing here imports a compiler, so that the coordinator
can hold every request and answer without being able to crash in one.

Times are seconds, sizes bytes. A candidate that does not build or run is data
(:class:`RunResult`, :class:`BuildResult`); misuse raises.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tuner.library.manifest import Weight

ErrorKind = Literal[
    "build_error", "build_timeout", "run_error", "run_timeout", "wrong_result", "worker_lost"
]


@dataclass(frozen=True)
class TargetInfo:
    """A target in canonical form, and the device it was resolved on.

    Attributes:
        spec: Canonical JSON of the target.
        kind: ``"llvm"`` or ``"cuda"``.
        device: The device fingerprint: names, core count and versions.
        pipeline: Names the passes that split a network into workloads for this target.
        compiler: What else than target and device the bytes of an object depend on: versions
            and settings of the compiler, JSON.
        problem: Why this machine cannot run such code; empty if it can.
    """

    spec: str
    kind: str
    device: Mapping[str, Any]
    pipeline: str = ""
    problem: str = ""
    compiler: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelFile:
    """A cleaned model on disk, as a worker reads it.

    Attributes:
        path: File with the cleaned bytes.
        format: ``"onnx"`` or ``"pt2"``.
        inputs: Shape and dtype by input name.
    """

    path: str
    format: str
    inputs: Mapping[str, tuple[tuple[int, ...], str]]


@dataclass(frozen=True)
class ExtractedTask:
    """One workload of a network.

    Attributes:
        workload: Structural hash of the subgraph, 16 hexadecimal digits.
        name: What the subgraph computes, for people.
        ir: The subgraph, serialised and compressed.
        weight: How often the network runs it.
        flop: Floating-point operations of one run.
    """

    workload: str
    name: str
    ir: bytes
    weight: int
    flop: float


@dataclass(frozen=True)
class Extraction:
    """What a network is made of; the weights of ``tasks`` add up to ``n_kernel_calls``."""

    tasks: tuple[ExtractedTask, ...]
    n_kernel_calls: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class MeasuredTrace:
    """One spent trial as the search needs to know it; latency is None if it failed."""

    trace: str
    module_hash: str
    latency: float | None


@dataclass(frozen=True)
class SearchRequest:
    """One round of search on one task.

    Attributes:
        ir: The subgraph.
        target: Canonical JSON of the target.
        measured: Every trial already spent on the task.
        cost_model: A saved cost model.
        n_candidates: How many candidates to return at most.
        population: Traces alive in each generation.
        n_generations: Generations of mutation.
        seed: Seeds every draw, at least 1: the answer is a pure function of the request.
    """

    ir: bytes
    target: str
    measured: tuple[MeasuredTrace, ...]
    cost_model: bytes
    n_candidates: int
    population: int
    n_generations: int
    seed: int


@dataclass(frozen=True)
class Candidate:
    """An unmeasured trace.

    Attributes:
        trace: The decisions, JSON; replayable with :func:`Engine.build`.
        module_hash: Hash of the program it gives: equal programs, equal hash.
        features: Packed features for the cost model.
        score: What the cost model expects, higher is better.
    """

    trace: str
    module_hash: str
    features: bytes
    score: float


@dataclass(frozen=True)
class BuildRequest:
    """Build one candidate into the directory ``out``.

    An empty trace leaves it unscheduled, or for a GPU with a default schedule.

    The executor says which directory.
    """

    ir: bytes
    target: str
    trace: str
    out: str = ""


@dataclass(frozen=True)
class BuildResult:
    """An artifact's directory, or why there is none."""

    artifact: str
    error_text: str = ""


@dataclass(frozen=True)
class EvaluatorSettings:
    """How a candidate is timed.

    Attributes:
        number: Runs averaged into one sample, at least.
        repeat: Samples, at least 3 so that the noise is known.
        min_repeat_ms: With a flush, take more samples until they last this long together;
            without, raise ``number`` until one sample does; milliseconds.
        cache_flush: Empty the private caches of the CPU before each sample, as the rest
            of a network would.
        cooldown_ms: Rest between samples, milliseconds.
        flush_bytes: Bytes that a flush reads, where the private caches are not enough.
        timeout_secs: A candidate that takes longer is killed.
    """

    number: int = 1
    repeat: int = 3
    min_repeat_ms: int = 10
    cache_flush: bool = True
    cooldown_ms: int = 0
    flush_bytes: int = 0
    timeout_secs: float = 20.0

    def __post_init__(self) -> None:
        for name, least in (("number", 1), ("repeat", 3), ("min_repeat_ms", 0), ("cooldown_ms", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.timeout_secs > 0:
            raise ValueError(f"timeout_secs must be positive, got {self.timeout_secs}")


@dataclass(frozen=True)
class RunRequest:
    """Time one artifact and compare its output.

    Attributes:
        artifact: Directory of a built candidate.
        target: Canonical JSON of the target.
        reference: File with the expected output on the seeded inputs; empty to not compare.
        evaluator: How to time.
        best_secs: Best latency of the task so far; slower candidates are timed briefly.
    """

    artifact: str
    target: str
    reference: str
    evaluator: EvaluatorSettings
    best_secs: float = float("inf")


@dataclass(frozen=True)
class RunResult:
    """Samples in seconds, or an error; ``max_error`` is relative to the largest output.

    ``conditions`` are those of the device while it was timed, as far as it tells: clocks in MHz,
    temperature in degrees Celsius, and under ``throttled`` the reasons why it ran slower than it
    can, none if it did not.
    """

    run_secs: tuple[float, ...] | None = None
    error_kind: ErrorKind | None = None
    error_text: str = ""
    max_error: float | None = None
    conditions: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class RemoteServer:
    """A server on a device that is ours for one session.

    Attributes:
        host: Where it listens.
        port: Where it listens.
        match_key: What it wants to hear.
        session_secs: It ends the session after so long, and whatever runs in it.
    """

    host: str
    port: int
    match_key: str
    session_secs: int


@dataclass(frozen=True)
class RemoteAnswer:
    """What a function returned that was called on a remote device, or what became of the session.

    Attributes:
        value: What the function returned.
        problem: ``"refused"`` if there was no session, ``"expired"`` if it lasted too long,
            ``"broken"`` if it ended before the function did; empty otherwise.
        text: The problem in words.
    """

    value: Any = None
    problem: Literal["", "refused", "expired", "broken"] = ""
    text: str = ""


@dataclass(frozen=True)
class ObjectRequest:
    """Compile one subgraph into the directory ``out``.

    Attributes:
        ir: The subgraph.
        target: Canonical JSON of the target.
        trace: How to schedule it. Empty, it is a fallback: as it is, for a GPU with a default
            schedule.
        symbol: Name of its function; the bytes depend on it.
        out: An existing, empty directory.
    """

    ir: bytes
    target: str
    trace: str
    symbol: str
    out: str


@dataclass(frozen=True)
class ObjectResult:
    """What linking needs to know of the files that were written, JSON, and what they took."""

    info: Mapping[str, Any]
    secs: float


@dataclass(frozen=True)
class LinkedObject:
    """The object of a workload: its files, the name of its function, what compiling it said."""

    folder: str
    symbol: str
    info: Mapping[str, Any]


@dataclass(frozen=True)
class LinkRequest:
    """Link networks into one library in the directory ``out``.

    Attributes:
        models: Cleaned models, alike but for the shapes of their inputs: a program each.
        target: Canonical JSON of the target.
        objects: The object of every workload of the models.
        out: An existing, empty directory.
    """

    models: tuple[ModelFile, ...]
    target: str
    objects: Mapping[str, LinkedObject]
    out: str


@dataclass(frozen=True)
class LinkedProgram:
    """One network in a library.

    Attributes:
        entry: Name of its function.
        weights: Numbers of the weights that the function takes after the inputs.
        calls: Kernel calls by workload, in the order of the first.
        n_outputs: How many tensors it returns.
    """

    entry: str
    weights: tuple[int, ...]
    calls: Mapping[str, int]
    n_outputs: int


@dataclass(frozen=True)
class LinkResult:
    """What linking wrote into its directory: a program per model, and all their weights."""

    files: tuple[str, ...]
    programs: tuple[LinkedProgram, ...]
    weights: tuple[Weight, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class NetworkRun:
    """Run a library on given inputs.

    Attributes:
        library: Directory of the library.
        inputs: ``.npz`` file with one array per input name.
        outputs: ``.npz`` file to write the outputs to; empty to write none.
        n_runs: Timed runs, after two that are not.
    """

    library: str
    inputs: str
    outputs: str
    n_runs: int


@dataclass(frozen=True)
class Verdict:
    """What one tool of a sanitizer says of a kernel.

    Attributes:
        tool: ``"memcheck"`` or ``"racecheck"``.
        n_errors: How many errors or hazards; None if it came to no end.
        text: The first of them, or why there is no verdict; empty if all is well.
    """

    tool: str
    n_errors: int | None
    text: str

    @property
    def is_clean(self) -> bool:
        """Whether the tool ran the kernel and found nothing."""
        return self.n_errors == 0


class Engine(Protocol):
    """The functions an engine module offers to workers."""

    def describe_target(self, spec: str) -> TargetInfo:
        """Resolve a target as a user writes it.

        Raises:
            TargetError: If it is unknown or malformed.
        """

    def extract(self, model: ModelFile, target: str) -> Extraction:
        """Split a network into weighted tasks.

        Raises:
            ModelError: If an operator is not supported; it is named.
        """

    def define(self, irs: list[bytes]) -> list[str]:
        """Return what subgraphs compute, in the notation of the compiler, for people."""

    def propose(self, request: SearchRequest) -> list[Candidate]:
        """Search one task; best expected first; empty when its space is exhausted."""

    def build(self, request: BuildRequest) -> BuildResult:
        """Build a candidate into an artifact."""

    def calibration_kernel(self, target: str) -> bytes:
        """Return the IR of a subgraph that devices of a target are compared by, always the same.

        As it is built without a trace, it takes some milliseconds.
        """

    def reference(self, artifact: str, target: str, out: str) -> None:
        """Run an unscheduled artifact on the seeded inputs and keep its output in ``out``."""

    def run(self, request: RunRequest) -> RunResult:
        """Time one artifact in this process, which must do nothing else."""

    def run_interleaved(self, requests: list[RunRequest], n_turns: int) -> list[RunResult]:
        """Time several artifacts in turns, so that drift of the machine hits all alike."""

    def call_remotely(self, server: RemoteServer, function: str, *args: Any) -> RemoteAnswer:
        """Call ``describe_target``, ``reference`` or a function that times on a remote device.

        Artifacts and references are files of this machine; what the device needs is uploaded.
        An engine that knows no remote devices has no such function.
        """

    def sanitize(self, artifact: str, target: str) -> tuple[Verdict, ...]:
        """Run an artifact under the tools that find accesses and races which did no harm.

        Raises:
            RequestError: If there are none for the target, or they are not installed.
        """

    def compile_subgraph(self, request: ObjectRequest) -> ObjectResult:
        """Compile a subgraph to an object; equal requests give equal bytes."""

    def link_network(self, request: LinkRequest) -> LinkResult:
        """Link a library from objects."""

    def run_network(self, request: NetworkRun) -> tuple[float, ...]:
        """Run a library and return its samples, seconds."""
