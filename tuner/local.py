"""Work of the Python API on this machine: opens settings, database and workers, and reports."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from records import tasks
from tuner.compile.bench.benchmark import BenchRequest, bench_library
from tuner.compile.bench.comparison import Comparison
from tuner.compile.build_library import BuildOptions, build_library
from tuner.compile.padding import BucketedModel, check_padding
from tuner.compile.reproduce import RecompiledSubgraph, Reproduction, read_manifest
from tuner.compile.reproduce import reproduce as recompile
from tuner.context import Context, open_context
from tuner.devices.target_cache import DescribeTarget
from tuner.engines.environments import ENGINES
from tuner.executors.factory import open_describer
from tuner.interrupts import interruptible
from tuner.jobs.preparation import Prepared, prepare
from tuner.jobs.programs import programs_of, read_dimensions
from tuner.jobs.requests import ModelRequest, TuneRequest
from tuner.jobs.stale_records import stale_bests
from tuner.library.buckets import Buckets
from tuner.profiling.library_profile import ProfileRequest, profile_library
from tuner.profiling.results import LibraryProfile
from tuner.queries.jobs import read_job
from tuner.reporting import reports
from tuner.reporting.reports import BuildReport, ExtractReport, TuneReport
from tuner.settings import SettingOverrides, read_settings
from tuner.tuning.run_local import run_tuning
from tuner.tuning.status import TuningCallbacks
from tuner.workers.confinement.sandbox_paths import model_access
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool

_DEFINITION_TIMEOUT_SECS = 120.0


def tune(
    request: TuneRequest,
    overrides: SettingOverrides,
    callbacks: TuningCallbacks,
    *,
    separate: bool = False,
) -> list[TuneReport]:
    """Tune networks in one job, or in a job each.

    Raises:
        RequestError: If the request is wrong; nothing was measured.
        WorkError: If nothing could be measured; with ``separate``, the report of the job has
            the error instead.
    """
    with interruptible(only_waiting=True), open_context(**overrides) as context:
        for model in request.models:
            for note in _padding_notes(context, model):
                callbacks.on_note(note)
        results = run_tuning(context, request, callbacks, separate=separate)
        with context.readers() as session:
            return [
                reports.report_tuning(result, read_job(session, result.job_id))
                for result in results
            ]


def extract(
    request: ModelRequest, overrides: SettingOverrides, *, definitions: bool = False
) -> ExtractReport:
    """Split a network into its tasks; with ``definitions``, describe what each computes.

    Raises:
        RequestError: If the model or the target cannot be used.
        WorkError: If the worker process dies.
    """
    with _open_loader(overrides, [request]) as loader:
        prepared = loader.prepare(request)
        return reports.report_tasks(prepared, loader.define(prepared) if definitions else {})


def build(
    requests: Sequence[ModelRequest], out: Path, overrides: SettingOverrides, options: BuildOptions
) -> BuildReport:
    """Build a library of one model with a program for each of its sets of input shapes.

    Raises:
        RequestError: If the request is wrong; ``out`` is unchanged.
        WorkError: If it cannot be compiled; ``out`` is unchanged.
    """
    with _open_loader(overrides, requests) as loader:
        if requests[0].buckets:
            prepared, buckets = _prepare_buckets(loader, requests[0])
            options = replace(options, buckets=buckets)
        else:
            prepared = [loader.prepare(request) for request in requests]
        built = build_library(loader.context, prepared, loader.worker, out, options)
        stale = stale_bests(loader.context, prepared) if built.n_fallbacks else ()
        # A build for an absent GPU uses records of another device.
        used = {entry.workload for entry in built.manifest.subgraphs if entry.record is not None}
        stale = tuple(best for best in stale if best.workload not in used)
        return BuildReport(**vars(built), stale=stale, model=requests[0].reference)


def evaluate(library: Path, request: BenchRequest, overrides: SettingOverrides) -> Comparison:
    """Time a library, and compare it with the requested peers.

    Raises:
        RequestError: If the library is missing, damaged, or of another network than the model, or
            the inputs or peers cannot be used.
    """
    settings = read_settings(overrides)
    with interruptible(only_waiting=True):
        return bench_library(settings, library, request)


def profile(library: Path, request: ProfileRequest, overrides: SettingOverrides) -> LibraryProfile:
    """Time every kernel of a library inside the running network.

    Raises:
        RequestError: If the library is missing or damaged, cannot be profiled, or the inputs or
            peers cannot be used.
    """
    with interruptible(only_waiting=True), open_context(**overrides) as context:
        return profile_library(context, library, request)


def reproduce(
    manifest: Path,
    out: Path | None,
    overrides: SettingOverrides,
    on_subgraph: Callable[[RecompiledSubgraph], None],
) -> Reproduction:
    """Compile the objects of a library again, with its engine unless another one is given.

    Raises:
        RequestError: If the manifest cannot be used here, or ``out`` is not empty.
        WorkError: If ``out`` cannot be written.
    """
    described = read_manifest(manifest)
    # The engine of a manifest is a module to import: only known ones are.
    if overrides.get("engine") is None and described.engine in ENGINES.values():
        overrides = {**overrides, "engine": described.engine}
    with (
        interruptible(only_waiting=True),
        open_context(**overrides) as context,
        fresh_worker(context.settings) as worker,
    ):
        return recompile(context, described, worker, out, on_subgraph)


def _prepare_buckets(loader: "_Loader", request: ModelRequest) -> tuple[list[Prepared], Buckets]:
    """Load the programs of a model with buckets, and find out what may be padded."""
    dimensions = read_dimensions(request.reference, loader.worker)
    programs = programs_of(request, dimensions)
    prepared = [loader.prepare(program) for program in programs]
    model = BucketedModel(request, dimensions, programs, prepared[-1])
    return prepared, check_padding(loader.context.settings, model)


def _padding_notes(context: Context, request: ModelRequest) -> tuple[str, ...]:
    """Check the padding of a model with buckets before it is tuned, which takes much longer."""
    if not request.buckets:
        return ()
    access = model_access(request.reference)
    with (
        open_describer(context.settings) as describe,
        fresh_worker(context.settings, access=access) as worker,
    ):
        dimensions = read_dimensions(request.reference, worker)
        programs = programs_of(request, dimensions)
        largest = prepare(programs[-1], context, worker, must_run=True, describe=describe)
    model = BucketedModel(request, dimensions, programs, largest)
    return check_padding(context.settings, model).notes()


@dataclass(frozen=True)
class _Loader:
    """Loads networks that are not measured."""

    context: Context
    worker: Pool
    describe: DescribeTarget | None

    def prepare(self, request: ModelRequest) -> Prepared:
        return prepare(request, self.context, self.worker, must_run=False, describe=self.describe)

    def define(self, prepared: Prepared) -> dict[str, str]:
        """Return the IR of each workload as its compiler prints it, by workload hash."""
        with self.context.readers() as session:
            irs = {
                task.workload_hash: tasks.workload_ir(session, task.task_id)
                for task in prepared.tasks
            }
        texts: list[str] = self.worker.call(
            self.context.settings.engine,
            "define",
            list(irs.values()),
            timeout_secs=_DEFINITION_TIMEOUT_SECS,
        )
        return dict(zip(irs, texts, strict=True))


@contextmanager
def _open_loader(
    overrides: SettingOverrides, requests: Sequence[ModelRequest]
) -> Iterator[_Loader]:
    access = model_access(*(request.reference for request in requests))
    with (
        interruptible(only_waiting=True),
        open_context(**overrides) as context,
        open_describer(context.settings) as describe,
        fresh_worker(context.settings, access=access) as worker,
    ):
        yield _Loader(context, worker, describe)
