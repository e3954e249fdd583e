"""The work of commands on this machine: open what it takes, do it, describe what came of it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from records import tasks
from tuner.build_cache.opening import open_local
from tuner.cli.console import stderr_console
from tuner.cli.rendering.progress import console_callbacks
from tuner.cli.rendering.reports import (
    BuildReport,
    ExtractReport,
    TuneReport,
    build_report,
    extract_report,
    tune_report,
)
from tuner.compile.benchmark import Comparison, bench_library
from tuner.compile.build_library import BuildOptions, build_library
from tuner.context import Context, SettingOverrides, open_context
from tuner.devices.target_cache import DescribeTarget
from tuner.executors.factory import open_describer
from tuner.interrupts import interruptible
from tuner.jobs import known_models
from tuner.jobs.preparation import ModelRequest, Prepared, prepare
from tuner.jobs.requests import TuneRequest
from tuner.jobs.stale_records import stale_bests
from tuner.settings import read_settings
from tuner.tuning.run_local import run_separately, run_tuning
from tuner.workers.pool import Pool
from tuner.workers.pools import fresh_worker

_DEFINITION_TIMEOUT_SECS = 120.0


def tune(
    request: TuneRequest, place: SettingOverrides, *, separate: bool = False
) -> list[TuneReport]:
    """Tune networks in one job, or in a job each.

    Raises:
        RequestError: If the request is wrong; nothing was measured.
        WorkError: If nothing could be measured; of separate jobs the result says so.
    """
    with (
        interruptible(only_waiting=True),
        open_context(**place) as context,
        console_callbacks(stderr_console()) as callbacks,
    ):
        results = (
            run_separately(context, request, callbacks)
            if separate
            else [run_tuning(context, request, callbacks)]
        )
    return [tune_report(result) for result in results]


def split(
    request: ModelRequest, place: SettingOverrides, *, definitions: bool = False
) -> ExtractReport:
    """Split a network into its tasks; with ``definitions``, say what each computes.

    Raises:
        RequestError: If the model or the target cannot be used.
        WorkError: If the worker is lost on the way.
    """
    with _opened(place) as opened:
        prepared = opened.prepare(request)
        return extract_report(prepared, opened.definitions_of(prepared) if definitions else {})


def build(
    requests: Sequence[ModelRequest], out: Path, place: SettingOverrides, how: BuildOptions
) -> BuildReport:
    """Build a library of one model, a program for each of its sets of input shapes.

    Raises:
        RequestError: If the request is wrong; ``out`` is as before.
        WorkError: If it cannot be compiled; ``out`` is as before.
    """
    with _opened(place) as opened:
        prepared = [opened.prepare(request) for request in requests]
        built = build_library(opened.context, prepared, opened.worker, out, how)
        stale = stale_bests(opened.context, prepared) if built.fallbacks else ()
        return build_report(built, stale, requests[0].reference)


def bench(
    library: Path,
    model: known_models.ModelQuery | None,
    place: SettingOverrides,
    *,
    n_turns: int,
    seed: int,
) -> Comparison:
    """Time a library; with its model, compare it with the runtime that runs models as they are.

    Raises:
        RequestError: If the library is missing, damaged, or of another network than the model.
    """
    settings = read_settings(place)
    with interruptible(only_waiting=True):
        loaded = None
        if model is not None:
            with fresh_worker(settings) as worker:
                models = settings.data_dir / "models"
                loaded = known_models.load(open_local(settings), worker, models, model)
        return bench_library(settings, library, loaded, n_turns=n_turns, seed=seed)


@dataclass(frozen=True)
class _Opened:
    """What loads networks that are not measured."""

    context: Context
    worker: Pool
    describe: DescribeTarget | None

    def prepare(self, request: ModelRequest) -> Prepared:
        return prepare(request, self.context, self.worker, must_run=False, describe=self.describe)

    def definitions_of(self, prepared: Prepared) -> dict[str, str]:
        """Return what each workload computes, in the notation of its compiler."""
        with self.context.readers() as session:
            irs = {
                each.workload_hash: tasks.workload_ir(session, each.task_id)
                for each in prepared.tasks
            }
        texts: list[str] = self.worker.call(
            self.context.settings.engine,
            "define",
            list(irs.values()),
            timeout_secs=_DEFINITION_TIMEOUT_SECS,
        )
        return dict(zip(irs, texts, strict=True))


@contextmanager
def _opened(place: SettingOverrides) -> Iterator[_Opened]:
    with (
        interruptible(only_waiting=True),
        open_context(**place) as context,
        open_describer(context.settings) as describe,
        fresh_worker(context.settings) as worker,
    ):
        yield _Opened(context, worker, describe)
