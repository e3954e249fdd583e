"""The contract between the coordinator and an engine: plain data in, plain data out.

An engine is a module with the functions of :class:`Engine`. They run in worker
processes, are pure functions of their request, and may be called in any worker
any number of times. This module imports no compiler, so that the coordinator
can handle every request and result without loading one into its process.

Times are seconds, sizes bytes. A candidate that does not build or run is data
(:class:`RunResult`, :class:`BuildResult`); misuse raises.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from tuner.engines.packed import KernelOffer, PackedCandidate, PackedNetwork, PackedSource
from tuner.engines.runtime.tensor_digests import TensorDigest
from tuner.library.manifest import KernelCall, LaunchPlan, ProgramMemory, TensorSpec, Weight

ErrorKind = Literal[
    "build_error", "build_timeout", "run_error", "run_timeout", "wrong_result", "worker_lost"
]

InputKind = Literal["real", "whole"]
KernelPart = Literal["schedule", "source", "assembly"]
KERNEL_PARTS: tuple[KernelPart, ...] = get_args(KernelPart)

_VARIANT = '{"variant":'
_VARIANTS = "variants:"


def variant_of(trace: str) -> str:
    """Return the variant that a trace, or its beginning, is for; empty for the workload itself."""
    if not trace.startswith(_VARIANT):
        return ""
    return str(json.JSONDecoder().raw_decode(trace, len(_VARIANT))[0])


def origin_of(trace: str, stored: str | None) -> str:
    """Return the origin of a record; without a stored one, that of its trace for a variant."""
    variant = variant_of(trace)
    return stored or (f"{_VARIANTS}{variant}" if variant else "")


def variant_of_origin(origin: str) -> str:
    """Return the variant of a record by its origin; empty for the workload itself."""
    return origin.removeprefix(_VARIANTS) if origin.startswith(_VARIANTS) else ""


@dataclass(frozen=True)
class TargetInfo:
    """A target in canonical form, and the device it was resolved on.

    Attributes:
        spec: Canonical JSON of the target.
        kind: ``"llvm"`` or ``"cuda"``.
        device: Device fingerprint: names, core count and versions.
        pipeline: Identifier of the passes that split a network into workloads for this target.
        compiler: Versions and settings of the compiler that the bytes of an object depend on
            besides target and device, JSON.
        problem: Reason why this machine cannot run code for the target; empty if it can.
        has_schedules_by_rule: True if the first candidate of a task is a good schedule, found
            without a search.
        machine: Machine of libraries for the target, as Linux names it; empty if unknown.
        features: Features of the CPU that code for the target may use, as LLVM names them.
    """

    spec: str
    kind: str
    device: Mapping[str, Any]
    pipeline: str = ""
    problem: str = ""
    compiler: Mapping[str, Any] = field(default_factory=dict)
    has_schedules_by_rule: bool = False
    machine: str = ""
    features: Sequence[str] = ()


@dataclass(frozen=True)
class ModelFile:
    """A cleaned model on disk.

    Attributes:
        path: Path of the file with the cleaned bytes.
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
        workload: Name of the subgraph: SHA-256 of ``ir``, without compression by zlib.
        name: Display name, such as the operators of the subgraph.
        ir: Subgraph in canonical form: equal ones of several networks are equal bytes, without
            names or spans; serialised, and perhaps compressed by zlib.
        weight: Number of calls in one inference.
        flop: Floating-point operations of one call.
    """

    workload: str
    name: str
    ir: bytes
    weight: int
    flop: float


@dataclass(frozen=True)
class Extraction:
    """The tasks of a network; their weights add up to ``n_kernel_calls``."""

    tasks: tuple[ExtractedTask, ...]
    n_kernel_calls: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkloadProfile:
    """Properties of a subgraph by which tasks are compared, and the roof of a task follows.

    Attributes:
        window: Size of the window of its largest reduction, with stride and dilation unless
            they are 1: ``3x3/2``; empty without a window.
        grouping: ``"dense"``, ``"grouped"`` or ``"depthwise"``; empty unless that reduction
            multiplies operands.
        dtype: Data type of that reduction's sums, or of the output.
        operands: Data type of the numbers that it multiplies; empty unless they have one.
        n_bytes: Bytes that one call must read and write, each once: inputs, weights and output.
        input_bytes: Size of the inputs and weights, whether or not one call reads all of them.
        variants: Floating-point operations of one call by name of the variant.
        weight_bytes: Part of ``n_bytes`` that is weights, which a call may have to read from
            memory; 0 if unknown, and for a step of a loop, as the step before has read them.
    """

    window: str
    grouping: str
    dtype: str
    n_bytes: int
    input_bytes: int = 0
    output_bytes: int = 0
    n_output_elements: int = 0
    variants: Mapping[str, float] = field(default_factory=dict)
    weight_bytes: int = 0
    operands: str = ""


@dataclass(frozen=True)
class DevicePeaks:
    """Operations and bytes per second that a device reaches at most.

    Those of a CPU are measured on all its cores, those of a GPU follow from its clocks and units.

    Attributes:
        flops: Operations per second by data type; a multiply-add counts two. On a GPU, the type is
            that of the operands.
        cache_bytes: Size of the last-level cache.
        cache_bandwidth: Bytes per second that are read from the last-level cache.
        memory_bandwidth: Bytes per second that are read from memory.
        weights_kept_secs: Time for which the last-level cache keeps the weights of a kernel. Then
            reading them takes a quarter longer, because others use the cache, too. None if nothing
            but the size of the cache limits it.
    """

    flops: Mapping[str, float]
    cache_bytes: int
    cache_bandwidth: float
    memory_bandwidth: float
    weights_kept_secs: float | None


@dataclass(frozen=True)
class MeasuredTrace:
    """The part of a spent trial that a search needs; latency is None if the trial failed."""

    trace: str
    module_hash: str
    latency: float | None


@dataclass(frozen=True)
class SearchRequest:
    """One round of search on one task.

    Attributes:
        ir: Serialised subgraph.
        target: Canonical JSON of the target.
        measured: Trials already spent on the task.
        cost_model: Saved cost model.
        n_candidates: Maximum number of candidates to return by score.
        population: Number of traces in each generation.
        n_generations: Number of generations of mutation.
        seed: Seed of every random draw, at least 1; the result is a pure function of the request.
        n_random: Number of candidates to draw at random in addition.
        peak_flops: Operations per second that the device reaches at most in the type of the
            subgraph's sums; 0 if unknown.
    """

    ir: bytes
    target: str
    measured: tuple[MeasuredTrace, ...]
    cost_model: bytes
    n_candidates: int
    population: int
    n_generations: int
    seed: int
    n_random: int = 0
    peak_flops: float = 0.0


@dataclass(frozen=True)
class Candidate:
    """An unmeasured trace.

    Attributes:
        trace: Decisions of the schedule, JSON, replayable with :func:`Engine.build`.
        module_hash: Hash of the scheduled program; equal programs have equal hashes.
        features: Packed features for the cost model.
        score: Score of the cost model, higher is better.
        origin: Source that proposed it: ``rules``, ``variants``, ``mutants``, ``evolution`` or
            ``random``; the first two with the name of the rule or variant behind a colon.
    """

    trace: str
    module_hash: str
    features: bytes
    score: float
    origin: str = ""

    @property
    def is_random(self) -> bool:
        """True if it was drawn at random, False if the search chose it."""
        return self.origin == "random"


@dataclass(frozen=True)
class BuildRequest:
    """Build one candidate into the directory ``out``, which the executor sets.

    With an empty trace the subgraph stays unscheduled, or for a GPU gets a default schedule.
    """

    ir: bytes
    target: str
    trace: str
    out: str = ""


@dataclass(frozen=True)
class BuildResult:
    """Directory of an artifact, or the error that prevented it."""

    artifact: str
    error_text: str = ""


@dataclass(frozen=True)
class EvaluatorSettings:
    """Settings for timing a candidate.

    Attributes:
        number: Minimum number of runs averaged into one sample.
        repeat: Number of samples, at least 3, so that the noise can be estimated.
        min_repeat_ms: Minimum duration, milliseconds: with a flush, of all samples together, by
            taking more of them; without, of each sample, by raising ``number``.
        cache_flush: True to put the caches of the CPU before each sample into the state in which
            the rest of a network leaves them.
        cooldown_ms: Pause between samples, milliseconds.
        network_bytes: Size of the network, whose weights are timed in memory if the shared cache
            is smaller; 0 if unknown.
        weights_in_memory: True to time weights in memory whatever the size of that cache.
        timeout_secs: Time after which a candidate is killed, seconds.
    """

    number: int = 1
    repeat: int = 3
    min_repeat_ms: int = 10
    cache_flush: bool = True
    cooldown_ms: int = 0
    network_bytes: int = 0
    weights_in_memory: bool = False
    timeout_secs: float = 20.0

    def __post_init__(self) -> None:
        for name, lower in (("number", 1), ("repeat", 3), ("min_repeat_ms", 0), ("cooldown_ms", 0)):
            if getattr(self, name) < lower:
                raise ValueError(f"{name} must be at least {lower}, got {getattr(self, name)}")
        if not self.timeout_secs > 0:
            raise ValueError(f"timeout_secs must be positive, got {self.timeout_secs}")


@dataclass(frozen=True)
class ReferenceRequest:
    """Compute the expected outputs of a subgraph on seeded inputs.

    Attributes:
        ir: Serialised subgraph.
        target: Canonical JSON of the target of its candidates.
        inputs: ``"real"`` for dense numbers, ``"whole"`` for whole numbers whose sums are exact.
        seed: Seed of the inputs, at least 0.
    """

    ir: bytes
    target: str
    inputs: InputKind
    seed: int


@dataclass(frozen=True)
class RunRequest:
    """Time one artifact and compare its output.

    Attributes:
        artifact: Directory of a built candidate.
        target: Canonical JSON of the target.
        references: Files with expected outputs, one for each set of inputs; kernels are timed on
            the inputs of the last. Empty for no comparison.
        evaluator: Settings for timing.
        best_secs: Best latency of the task, seconds; slower candidates are timed briefly.
    """

    artifact: str
    target: str
    references: tuple[str, ...]
    evaluator: EvaluatorSettings
    best_secs: float = float("inf")


@dataclass(frozen=True)
class RunResult:
    """Samples in seconds, or an error; ``max_error`` is relative to the largest output.

    ``conditions`` are those of the device during the run, as far as it reports them: clocks in MHz,
    temperature in degrees Celsius, and under ``throttled`` the list of reasons why it ran below
    its speed. ``clock_secs`` is the time of the clock kernel beside the samples, a fixed kernel of
    the engine that tells how fast the device is; None if it was not timed.
    """

    run_secs: tuple[float, ...] | None = None
    error_kind: ErrorKind | None = None
    error_text: str = ""
    max_error: float | None = None
    conditions: Mapping[str, Any] | None = None
    clock_secs: float | None = None


@dataclass(frozen=True)
class RemoteServer:
    """A server on a remote device that is reserved for one session.

    Attributes:
        host: Host on which the server listens.
        port: Port on which the server listens.
        match_key: Key that a client must present.
        session_secs: Time after which the server ends the session with all its calls, seconds.
    """

    host: str
    port: int
    match_key: str
    session_secs: int


@dataclass(frozen=True)
class RemoteAnswer:
    """The result of a call on a remote device, or the problem of the session.

    Attributes:
        problem: ``"refused"`` if no session was opened, ``"expired"`` if it lasted too long,
            ``"broken"`` if it ended before the function returned; empty otherwise.
        text: Description of the problem.
    """

    value: Any = None
    problem: Literal["", "refused", "expired", "broken"] = ""
    text: str = ""


@dataclass(frozen=True)
class ObjectRequest:
    """Compile one subgraph into the directory ``out``.

    Attributes:
        ir: Serialised subgraph.
        target: Canonical JSON of the target.
        trace: Trace of its schedule. If empty, the object is a fallback: unscheduled, or for a GPU
            with a default schedule.
        symbol: Name of its function, on which the bytes depend.
        out: Existing, empty directory.
    """

    ir: bytes
    target: str
    trace: str
    symbol: str
    out: str


@dataclass(frozen=True)
class ObjectResult:
    """Description of the files for the linking step, JSON, and the compile time, seconds."""

    info: Mapping[str, Any]
    secs: float


@dataclass(frozen=True)
class LinkedObject:
    """The object of a workload: folder of its files, name of its function, compiler's ``info``."""

    folder: str
    symbol: str
    info: Mapping[str, Any]


@dataclass(frozen=True)
class LinkRequest:
    """Link networks into one library in the directory ``out``.

    Attributes:
        models: Cleaned models that differ only in the shapes of their inputs; each becomes one
            program.
        target: Canonical JSON of the target.
        objects: Object of every workload of the models, by workload.
        out: Existing, empty directory.
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
        weights: Indices of the weights that the function takes after the inputs.
        calls: Number of kernel calls by workload, in the order of the first calls.
        outputs: Shape and dtype of each tensor that the function returns.
        memory: Memory that the function takes; None if it allocates its own.
        plan: Launches of its kernels; None on a CPU, or if they do more than launching.
    """

    entry: str
    weights: tuple[int, ...]
    calls: Mapping[str, int]
    outputs: tuple[TensorSpec, ...]
    memory: ProgramMemory | None = None
    plan: LaunchPlan | None = None


@dataclass(frozen=True)
class LinkResult:
    """Contents of a linked library.

    Attributes:
        files: Names of its files.
        programs: A program for each model.
        weights: Weights of all programs.
        calls: Kernel calls of all programs, by their number in a profile; empty if the library
            cannot be profiled.
    """

    files: tuple[str, ...]
    programs: tuple[LinkedProgram, ...]
    weights: tuple[Weight, ...]
    calls: tuple[KernelCall, ...] = ()


@dataclass(frozen=True)
class NetworkRun:
    """Run a library on given inputs.

    Attributes:
        library: Directory of the library.
        inputs: ``.npz`` file with one array per input name.
        outputs: ``.npz`` file for the outputs; empty to write none.
        n_runs: Number of timed runs, which follow two untimed ones.
    """

    library: str
    inputs: str
    outputs: str
    n_runs: int


@dataclass(frozen=True)
class TimedCall:
    """A kernel call of a profiled run.

    Attributes:
        call: Number of the call, as in the library's manifest.
        start_secs: Start, seconds after the start of the run.
        secs: Duration, seconds.
    """

    call: int
    start_secs: float
    secs: float


@dataclass(frozen=True)
class ProfiledRun:
    """A run of a library whose calls were timed, in order; its duration is in seconds."""

    secs: float
    calls: tuple[TimedCall, ...]


@dataclass(frozen=True)
class ObservedCall:
    """A kernel call of a run, and its data.

    Attributes:
        call: Number of the call, as in the library's manifest.
        sources: Positions in the run of the calls that wrote its inputs.
    """

    call: int
    sources: tuple[int, ...]
    outputs: tuple[TensorDigest, ...]


@dataclass(frozen=True)
class SanitizerResult:
    """The result of one sanitizer tool for a kernel.

    Attributes:
        tool: ``"memcheck"`` or ``"racecheck"``.
        n_errors: Number of errors or hazards; None if the tool did not finish.
        text: First error, or the reason why the tool did not finish; empty if the kernel is clean.
    """

    tool: str
    n_errors: int | None
    text: str

    @property
    def is_clean(self) -> bool:
        """True if the tool ran the kernel and reported no error."""
        return self.n_errors == 0


class Engine(Protocol):
    """The functions of an engine module, which workers call."""

    def describe_target(self, spec: str) -> TargetInfo:
        """Resolve a target in the notation of users.

        Raises:
            TargetError: If it is unknown or malformed.
        """

    def extract(self, model: ModelFile, target: str) -> Extraction:
        """Split a network into weighted tasks.

        Raises:
            ModelError: If an operator is not supported; the message names it.
        """

    def define(self, irs: list[bytes]) -> list[str]:
        """Return the definitions of subgraphs in the notation of the compiler, for people."""

    def profile(self, irs: list[bytes]) -> list[WorkloadProfile]:
        """Profile subgraphs."""

    def propose(self, request: SearchRequest) -> list[Candidate]:
        """Search one task; return candidates by score, then those drawn at random.

        Random candidates also replace those that the search did not find. An engine returns none
        only if draws from the whole space found nothing new either, or if its variants are
        exhausted and nothing else can become faster than they are.
        """

    def build(self, request: BuildRequest) -> BuildResult:
        """Build a candidate into an artifact."""

    def print_kernel(self, request: BuildRequest, parts: Sequence[KernelPart]) -> Mapping[str, str]:
        """Return parts of a candidate's code, for people.

        Its schedule in the notation of the compiler, or for a Triton kernel its configuration; the
        source (LLVM, CUDA or Triton); its instructions as assembly, or as PTX for a GPU. An engine
        that cannot print them lacks this function.

        Raises:
            RequestError: If a compiler is not installed.
            WorkError: If the trace cannot be replayed, or the compiler refuses the kernel.
        """

    def calibration_kernel(self, target: str) -> bytes:
        """Return the IR of a fixed subgraph by which devices of a target are compared.

        Built without a trace, its kernel runs for some milliseconds.
        """

    def measure_peaks(self, target: str) -> DevicePeaks:
        """Measure the peaks of this CPU in this process, which must not do anything else.

        Takes less than two seconds; those of a GPU are not measured. An engine that does not know
        them lacks this function.

        Raises:
            RequestError: If the target is a GPU that this process does not see, or whose clocks
                are unknown.
        """

    def reference(self, request: ReferenceRequest) -> bytes:
        """Return the content of a reference file: inputs, expected outputs, and allowed errors.

        It is computed on the CPU, without a schedule and without the compiler of the candidates.

        Raises:
            WorkError: If the subgraph has no reference.
        """

    def run(self, request: RunRequest) -> RunResult:
        """Time one artifact in this process, which must not do anything else."""

    def run_interleaved(self, requests: list[RunRequest], n_turns: int) -> list[RunResult]:
        """Time several artifacts in turns, so that drift of the machine affects all equally."""

    def call_remotely(self, server: RemoteServer, function: str, *args: Any) -> RemoteAnswer:
        """Call ``describe_target`` or a function that times on a remote device.

        Artifacts and references are files of this machine; those that the device needs are
        uploaded. An engine without support for remote devices lacks this function.
        """

    def sanitize(self, artifact: str, target: str) -> tuple[SanitizerResult, ...]:
        """Check an artifact for invalid memory accesses and races, even those without effect.

        Raises:
            RequestError: If the target has no such tools, or they are not installed.
        """

    def offer_kernels(self, ir: bytes, target: str) -> KernelOffer:
        """Return the configurations of a workload whose kernels need no compiler on the device.

        An engine without packs lacks this function and the next four.

        Raises:
            RequestError: If no kernels can be compiled for the target here.
        """

    def pack_candidate(self, ir: bytes, target: str, name: str) -> PackedCandidate:
        """Compile the kernels of a configuration of :meth:`offer_kernels`.

        Raises:
            WorkError: If the compiler refuses them.
        """

    def print_candidates(
        self, ir: bytes, target: str, names: Sequence[str]
    ) -> dict[str, PackedSource]:
        """Return the sources of configurations of :meth:`offer_kernels` by name.

        Names without kernels are left out.
        """

    def pack_schedule(self, ir: bytes, target: str, trace: str) -> PackedCandidate:
        """Compile the kernels that a library has of a subgraph.

        Args:
            ir: Serialised subgraph.
            target: Canonical JSON of the target.
            trace: Trace of a record; empty for the default schedule.

        Raises:
            RequestError: If a compiler is not installed.
            WorkError: If it refuses the kernels, or the trace cannot be replayed.
        """

    def pack_network(self, model: ModelFile, target: str) -> PackedNetwork:
        """Return the launches of a network, as a library makes them.

        Raises:
            ModelError: If the network cannot be read.
            WorkError: If it does something else than launching kernels.
        """

    def compile_subgraph(self, request: ObjectRequest) -> ObjectResult:
        """Compile a subgraph to an object; equal requests give equal bytes."""

    def link_network(self, request: LinkRequest) -> LinkResult:
        """Link a library from objects."""

    def profile_network(self, request: NetworkRun) -> tuple[ProfiledRun, ...]:
        """Run a library and time every kernel call inside it; its outputs are not stored.

        Raises:
            WorkError: If the library has no timers.
        """

    def observe_network(self, request: NetworkRun) -> tuple[ObservedCall, ...]:
        """Run a library on a CPU once and observe the data of every kernel call inside it.

        Raises:
            WorkError: If the calls of the library cannot be observed.
        """

    def run_network(self, request: NetworkRun) -> tuple[float, ...]:
        """Run a library and return its samples, seconds."""

    def launch_note(self, library: str, inputs: str) -> str:
        """Return how a library runs on a GPU in this process, for people; empty on a CPU.

        Args:
            library: Directory of the library.
            inputs: ``.npz`` file that it was run on.
        """

    def clock_secs(self, target: str, period_secs: float) -> float | None:
        """Time the engine's clock kernel on a CPU, seconds; None where there is none.

        Args:
            target: Canonical JSON of the target.
            period_secs: Readings are averaged over periods of this length, and the median counts.
        """
