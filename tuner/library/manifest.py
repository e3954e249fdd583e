"""The manifest of a library: its contents, their origin, and checksums of its files."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

from tuner.errors import RequestError
from tuner.library.buckets import Buckets
from tuner.library.limits import InputLimit

MANIFEST = "manifest.json"
LIBRARY = "lib.so"
VERSION = 6
#: Version of the memory that programs for GPUs take, part of the key of their libraries.
MEMORY_VERSION = 3
#: Function of a library for GPUs that allocates the workspace of its programs.
WORKSPACE = "tuner_workspace"
#: Global function that programs call before each kernel call, with its number, if kernels may run
#: beside each other.
BEGIN_CALL = "tuner.begin_call"

#: Shape and dtype of a tensor; sizes that the data decide are -1.
TensorSpec = tuple[tuple[int, ...], str]
Inputs = Mapping[str, TensorSpec]
#: Value of an input that is a constant, or the shape of one without elements.
InputValue = bool | int | tuple[int, ...]


@dataclass(frozen=True)
class SubgraphEntry:
    """One subgraph of a library, and its origin.

    Attributes:
        name: Operators that it computes, with their shapes.
        workload: Hash of the workload.
        n_calls: Kernel calls in all programs together.
        record: Id of the measure record that it was built from; None for a fallback.
        latency: Seconds of one call by that record; None for a fallback.
        trace: Hash of the record's trace; None for a fallback.
        entry: Digest of its entry in the build cache.
        objects: The sha256 of its object files by name.
        variant: Variant that it was built as, with or without a record; empty for the workload
            itself.
        n_parallel: Largest number of pieces that its threads share; 1 for a kernel of one thread,
            None if unknown.
    """

    name: str
    workload: str
    n_calls: int
    record: int | None
    latency: float | None
    trace: str | None = None
    entry: str = ""
    objects: Mapping[str, str] = field(default_factory=dict)
    variant: str = ""
    n_parallel: int | None = None


@dataclass(frozen=True)
class Weight:
    """A weight in the library's file of weights; offset and size are in bytes.

    Weights of the same bytes in other shapes have the same offset.
    """

    offset: int
    n_bytes: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class KernelCall:
    """A kernel call of a library.

    Attributes:
        kernel: Name of the kernel, unique for each call.
        workload: Hash of its workload, or of the step that it loops over; empty for a kernel that
            is not a subgraph, such as a copy.
        n_outputs: Number of its last arguments that it writes.
        n_runs: Runs of the workload, one after the other, in one call.
    """

    kernel: str
    workload: str
    n_outputs: int = 1
    n_runs: int = 1


@dataclass(frozen=True)
class ProgramMemory:
    """Memory that the function of a program for a GPU takes after the weights, then a workspace.

    Attributes:
        written: Numbers of the outputs that it takes memory for, in the order in which it takes
            them. The others are inputs, weights, constants, or views of these or of an output.
        after: For each kernel call, the calls that must have ended before it begins; empty if each
            needs the one before it.
    """

    written: tuple[int, ...]
    after: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class KernelLaunch:
    """A launch of a kernel of a program for a GPU.

    Attributes:
        name: Name of its function.
        at: Place of its binary in ``lib.so``.
        n_bytes: Size of the binary.
        grid: Blocks along each axis.
        block: Threads of a block along each axis.
        shared_bytes: Shared memory of a block that the launch asks for.
        pointers: Number of the memory that each pointer is in, and its place there.
        n_parameters: Number of parameters; those after the pointers take zero.
        overlaps: True if it waits itself for the end of the kernel before, and is launched earlier
            (programmatic dependent launch).
        after: Launches that must have ended before it; not used in a chain.
    """

    name: str
    at: int
    n_bytes: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    pointers: tuple[tuple[int, int], ...]
    n_parameters: int
    overlaps: bool = False
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class LaunchPlan:
    """The launches of a program for a GPU, for runtimes without TVM.

    Memory is numbered: inputs, weights, the outputs that kernels write, then :attr:`sizes`.

    Attributes:
        sizes: Bytes of the memory between and beside kernels.
        launches: The launches, in an order in which they may run.
        outputs: Number of the memory that each output of the program is in.
        is_chain: True if each launch needs the one before it.
    """

    sizes: tuple[int, ...]
    launches: tuple[KernelLaunch, ...]
    outputs: tuple[int, ...]
    is_chain: bool


@dataclass(frozen=True)
class Program:
    """A network of a library, for one set of input shapes.

    Attributes:
        entry: Name of the function that runs it.
        network: Hash of the cleaned model.
        inputs: Shape and dtype by input name.
        weights: Indices of the weights that the function takes after the inputs.
        calls: Kernel calls by workload.
        outputs: Shape and dtype of what the function returns.
        values: Values of the model's inputs that are constants of the program, by name; of an
            input without elements, its shape.
        tail: Name of the ONNX file of the operators that run after it; empty without a tail.
        tail_outputs: Shape and dtype of the outputs of a call; empty without a tail.
        limits: Limits of the values of inputs that it takes as indices and divisors.
        memory: Memory that the function takes; None if it allocates its own, as on a CPU.
        plan: Launches of its kernels; None on a CPU, or if they do more than launching.
    """

    entry: str
    network: str
    inputs: Inputs
    weights: tuple[int, ...]
    calls: Mapping[str, int]
    outputs: tuple[TensorSpec, ...] = ()
    values: Mapping[str, InputValue] = field(default_factory=dict)
    tail: str = ""
    tail_outputs: tuple[TensorSpec, ...] = ()
    limits: tuple[InputLimit, ...] = ()
    memory: ProgramMemory | None = None
    plan: LaunchPlan | None = None


@dataclass(frozen=True)
class Source:
    """The model as the user gave it, before it was cleaned.

    Attributes:
        name: Name of the file without its folder, or ``zoo:NAME``.
        sha256: Hash of the file with its external data; empty for a zoo network.
        random_weights: Seed of the random weights that replaced its own; None if it kept them.
    """

    name: str
    sha256: str = ""
    random_weights: int | None = None


@dataclass(frozen=True)
class Tail:
    """The operators of a model that run after its program, as the data decide their shapes.

    Attributes:
        first: Operator that they begin with.
        n_operators: Number of them.
        n_all: Number of operators of the whole model.
        returned: Names of the outputs of the program, in order.
    """

    first: str
    n_operators: int
    n_all: int
    returned: tuple[str, ...]

    @property
    def note(self) -> str:
        """The operators and the runtimes that run them, in words."""
        share = self.n_operators / self.n_all
        return (
            f"{self.n_operators} of {self.n_all} operators ({share:.0%}), from {self.first} on, "
            "are not compiled, because the data decide their shapes: ONNX Runtime runs them "
            "after the library, or the reference evaluator of onnx where it cannot"
        )


@dataclass(frozen=True)
class Manifest:
    """The description of a library.

    Attributes:
        source: The model that it was last built from.
        kernel_calls: Kernel calls of all programs, by their number in a profile; empty if the
            library cannot be profiled.
        pipeline: Identifier of the passes that split the networks.
        files: The sha256 of every file by name.
        engine: Module that built it.
        buckets: Dynamic dimensions whose sizes the programs are; None for fixed shapes.
        clock_secs: Time of the engine's clock kernel to which the latencies of the records refer;
            None where there is none.
        clock_kernel: Name of that kernel.
        outputs: Names of the outputs of a call, in order.
        tail: The operators that run after the programs; None if all are compiled.
        machine: Machine that runs it, as Linux names it; empty if unknown.
        features: Features of the CPU that its code may use, as LLVM names them.
    """

    model_name: str
    target: str
    device: Mapping[str, Any]
    compiler: Mapping[str, Any]
    outputs: tuple[str, ...]
    programs: tuple[Program, ...]
    weights: tuple[Weight, ...]
    subgraphs: tuple[SubgraphEntry, ...]
    files: Mapping[str, str]
    engine: str
    source: Source
    pipeline: str
    version: int = VERSION
    kernel_calls: tuple[KernelCall, ...] = ()
    buckets: Buckets | None = None
    clock_secs: float | None = None
    clock_kernel: str = ""
    tail: Tail | None = None
    machine: str = ""
    features: tuple[str, ...] = ()

    @property
    def returned(self) -> tuple[str, ...]:
        """Names of the outputs of the programs, in order, which a tail may read."""
        return self.outputs if self.tail is None else self.tail.returned

    @property
    def n_fallbacks(self) -> int:
        """Number of subgraphs that were built without a record."""
        return sum(1 for subgraph in self.subgraphs if subgraph.record is None)

    @property
    def inputs(self) -> Inputs:
        """Inputs of the first program; inputs of other programs differ only in shapes."""
        return self.programs[0].inputs

    def outputs_of(self, program: Program) -> Inputs:
        """Shape and dtype of the outputs of a call by name; no name where they are unknown."""
        specs = program.outputs if self.tail is None else program.tail_outputs
        return dict(zip(self.outputs, specs, strict=False))

    @property
    def estimated_secs(self) -> float | None:
        """Sum of the records' latencies over the first program's calls; None with a fallback."""
        return self.estimate(self.programs[0])

    def estimate(self, program: Program) -> float | None:
        """Sum of the records' latencies over the calls of a program; None with a fallback."""
        latencies = {subgraph.workload: subgraph.latency for subgraph in self.subgraphs}
        parts = [(latencies.get(workload), n) for workload, n in program.calls.items()]
        if any(latency is None for latency, _ in parts):
            return None
        return sum((latency or 0.0) * n for latency, n in parts)


def as_json(manifest: Manifest) -> dict[str, Any]:
    """Return the content of a manifest's file."""
    raw: dict[str, Any] = json.loads(json.dumps(manifest, default=vars))
    return raw


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a library, last of its files."""
    path = folder / MANIFEST
    # Keys are not sorted: the order of the inputs is the order in which the programs take them.
    # An existing file is not written into: it may be a link to an entry of the build cache.
    path.unlink(missing_ok=True)
    path.write_text(json.dumps(manifest, default=vars, indent=1) + "\n")


def read(folder: Path) -> Manifest:
    """Read and check a library's manifest.

    Raises:
        RequestError: If there is no library, or it is damaged or of another version.
    """
    return read_file(folder / MANIFEST)


def read_file(path: Path) -> Manifest:
    """Read and check the manifest in a file.

    Raises:
        RequestError: If there is no library, or it is damaged or of another version.
    """
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise RequestError(
            f"{path.parent} is not a library: it has no {path.name}; `tuner build` makes one"
        ) from error
    return parse(content, str(path))


def parse(content: bytes, name: str) -> Manifest:
    """Parse and check the content of a manifest; messages call it by ``name``.

    Raises:
        RequestError: If it is damaged or of another version.
    """
    try:
        raw = json.loads(content)
        version = raw["version"]
        if version != VERSION:
            raise RequestError(
                f"{name} has manifest version {version}, and this tuner reads version {VERSION}: "
                "build the library again, or upgrade subgraph-tuner"
            )
        return _parse(raw)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RequestError(f"{name} is damaged: {error}") from error


def _parse(raw: dict[str, Any]) -> Manifest:
    unknown = raw.keys() - {field.name for field in fields(Manifest)}
    if unknown:
        raise ValueError(f"its field {min(unknown)!r} is unknown")
    manifest = msgspec.convert(raw, Manifest)
    if not manifest.programs:
        raise ValueError("it names no program")
    for name in manifest.files:
        if Path(name).name != name:
            raise ValueError(f"the file {name!r} is outside of the folder")
    # Only these have a digest, which is compared before a file is loaded.
    tails = {program.tail for program in manifest.programs if manifest.tail is not None}
    missing = tails - manifest.files.keys()
    if missing:
        raise ValueError(f"the tail {min(missing)!r} is not one of its files")
    return manifest


def verify(folder: Path, manifest: Manifest, loaded: Iterable[str] = ()) -> None:
    """Compare every file with its checksum.

    Args:
        folder: Folder of the library.
        loaded: Names of files that the caller loads, which must have a checksum.

    Raises:
        RequestError: If a file is missing, altered, or without a checksum.
    """
    for name in set(loaded) - manifest.files.keys():
        raise RequestError(f"{folder / MANIFEST} is damaged: {name} is not one of its files")
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise RequestError(f"{folder} is incomplete: {name} is missing; build it again")
        if sha256_of(path) != expected:
            raise RequestError(f"{path} was altered after it was built; build it again")


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
