"""``tuner check``: fail if a library is not tuned, too slow, or slower than another one."""

import contextlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import connection, hints, options
from tuner.cli.console import print_json, print_note
from tuner.cli.options import argument, option

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tuner.compile.bench.gate import Checked
    from tuner.jobs.requests import ModelRequest
    from tuner.jobs.stale_records import StaleBest
    from tuner.reporting.reports import BuildReport
    from tuner.settings import SettingOverrides

_REPORT_PANEL = "Reports"


def check(
    library: Annotated[
        str,
        argument(
            "LIBRARY|MODEL",
            "Folder of a library, or a model, of which a library is built with the best records.",
        ),
    ],
    min_coverage: Annotated[
        str, option("SHARE", "Smallest share of the subgraphs that must be tuned.", panel="Limits")
    ] = "100%",
    max_ms: Annotated[
        float | None, option("MS", "Largest median latency, milliseconds.", panel="Limits")
    ] = None,
    baseline: Annotated[
        Path | None,
        option(
            "LIBRARY",
            "Folder of an older library, which takes turns with this one.",
            panel="Limits",
        ),
    ] = None,
    max_slowdown: Annotated[
        str,
        option(
            "SHARE", "Largest increase of the median latency over the baseline.", panel="Limits"
        ),
    ] = "3%",
    target: options.TargetOption = "llvm",
    inputs: options.InputOption = [],
    random_weights: options.RandomWeightsOption = None,
    arrays: options.ArraysOption = None,
    turns: Annotated[
        int,
        option(
            "N",
            "Number of turns of about 0.1 s each, at least 8; noise adds up to three times as "
            "many.",
            panel=options.MEASURING_PANEL,
        ),
    ] = 12,
    seed: options.InputSeedOption = 0,
    junit: Annotated[
        Path | None,
        option("FILE", "Write a test case for each limit as JUnit XML.", panel=_REPORT_PANEL),
    ] = None,
    markdown: Annotated[
        Path | None,
        option("FILE", "Append the tables to this file as Markdown.", panel=_REPORT_PANEL),
    ] = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    engine: options.EngineOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Check that a library is tuned, fast enough, and not slower than another one.

    Exit status 3 if too few subgraphs are tuned, 4 if the library is too slow or slower than the
    baseline, 5 if the machine is too noisy to tell, in this order. Runs the library only with
    --max-ms or --baseline; see docs/ci.md.

    Examples:
        tuner check squeezenet.lib
        tuner check squeezenet.onnx --min-coverage 95% --junit check.xml
        tuner check new.lib --baseline old.lib --max-slowdown 3% --max-ms 5
    """
    from tuner.cli.rendering import check_reports
    from tuner.cli.rendering.records import stale_records
    from tuner.compile.bench.gate import MIN_TURNS, CheckRequest, as_json, check_library
    from tuner.errors import RequestError
    from tuner.interrupts import interruptible
    from tuner.jobs.requests import model_requests, parse_input_sets, parse_inputs
    from tuner.profiling.verdicts import tune_command
    from tuner.settings import read_settings

    if turns < MIN_TURNS:
        raise RequestError(f"--turns must be at least {MIN_TURNS}, got {turns}")
    if max_ms is not None and not 0.0 < max_ms < float("inf"):
        raise RequestError(f"--max-ms must be above 0, got {max_ms:g}")
    if (server := connection.chosen()) is not None:
        print_note(f"check runs on this machine, not at {server.url}")
    is_model = _is_model(library)
    request = CheckRequest(
        min_coverage=options.share("--min-coverage", min_coverage),
        max_secs=None if max_ms is None else max_ms / 1e3,
        baseline=baseline,
        max_slowdown=options.share("--max-slowdown", max_slowdown),
        shapes={} if is_model else parse_inputs(inputs),
        arrays=arrays,
        n_turns=turns,
        seed=seed,
    )
    overrides: SettingOverrides = {"database": database, "data_dir": data_dir, "engine": engine}
    with contextlib.ExitStack() as stack:
        folder = Path(library)
        stale: Sequence[StaleBest] = ()
        if is_model:
            models = model_requests([library], target, parse_input_sets(inputs), random_weights)
            report = stack.enter_context(_built(models, overrides))
            folder, stale = report.folder, report.stale
        stack.enter_context(interruptible(only_waiting=True))
        checked = check_library(read_settings(overrides), folder, request)
    command = tune_command(checked.described, checked.program, library if is_model else "")
    verify = hints.command(
        "records verify",
        library,
        options=hints.model_options(target, inputs, (), (), random_weights, overrides),
        is_local=True,
    )
    remarks = check_reports.remarks_on(
        checked,
        hints.placed(command, overrides),
        stale_records.notes(stale, len(checked.described.subgraphs), verify),
    )
    _write_reports(checked, remarks, junit, markdown)
    if json_output:
        print_json(as_json(checked))
    else:
        check_reports.show_check(checked, remarks)
    if checked.exit_code:
        raise typer.Exit(checked.exit_code)


def _is_model(reference: str) -> bool:
    """Return whether a reference that may not exist names a model rather than a library."""
    path = Path(reference)
    is_named = reference.startswith("zoo:") or path.suffix.lower() in (".onnx", ".pt2")
    return not path.is_dir() and (is_named or path.is_file())


@contextmanager
def _built(
    models: "Sequence[ModelRequest]", overrides: "SettingOverrides"
) -> "Iterator[BuildReport]":
    """Build a library for the time of the check."""
    import tempfile

    from tuner import local
    from tuner.compile.build_library import BuildOptions
    from tuner.files.process_folder import shared_folder

    with tempfile.TemporaryDirectory(dir=shared_folder()) as scratch:
        yield local.build(models, Path(scratch) / "library", overrides, BuildOptions())


def _write_reports(
    checked: "Checked", remarks: "Sequence[str]", junit: Path | None, markdown: Path | None
) -> None:
    from tuner.cli.rendering import check_reports
    from tuner.cli.streams import output
    from tuner.errors import RequestError

    if junit is not None:
        with output(str(junit)) as stream:
            stream.write(check_reports.as_junit(checked, remarks))
    if markdown is not None:
        try:
            with markdown.open("a", encoding="utf-8") as stream:
                stream.write(check_reports.as_markdown(checked, remarks))
        except OSError as error:
            raise RequestError(f"cannot write {markdown}: {error.strerror}") from error
