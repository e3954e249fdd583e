"""``tuner tune``: spend a budget of trials on networks."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import STARTED, connection, hints, options
from tuner.cli.console import print_error, print_json, print_note
from tuner.cli.options import argument, flag, option

if TYPE_CHECKING:
    from tuner.reporting.reports import TuneReport


def tune(
    models: Annotated[
        list[str],
        argument(
            "MODEL", "A .onnx or .pt2 file, or zoo:NAME; several models are tuned in one job."
        ),
    ],
    target: options.TargetOption = "llvm",
    inputs: options.InputOption = [],
    buckets: options.BucketOption = [],
    masks: options.MaskOption = [],
    random_weights: options.RandomWeightsOption = None,
    separate: Annotated[
        bool,
        flag(
            "--separate",
            "Tune each MODEL in a job of its own; the jobs share the devices.",
            panel=options.MODEL_PANEL,
        ),
    ] = False,
    webhook: Annotated[
        str,
        option(
            "URL",
            "Have the server send a signed request there when the job has ended.",
            panel=options.OUTPUT_PANEL,
        ),
    ] = "",
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    engine: options.EngineOption = None,
    rpc: options.RpcOption = None,
    json_output: options.JsonOption = False,
    **fields: Any,
) -> None:
    """Tune the kernels of a network within a budget of trials or seconds.

    Splits the network into tasks and gives each round of trials to the task that is expected to
    reduce the latency of the network most. Every trial is stored as soon as it is measured: stop
    the command at any time, and the same command resumes. Trials of earlier runs count against
    the budget.

    Examples:
        tuner tune squeezenet.onnx --trials 1000
        tuner tune zoo:resnet-18 --seconds 600
        tuner tune model.onnx --input data=1,3,224,224 --trials 2000
        tuner tune bert.onnx --bucket batch=1,4 --bucket sequence=32,64,128 --trials 9000
        tuner tune model.onnx --objective requirements --require-ms 5
        tuner tune a.onnx b.onnx --objective geometric_mean
        tuner tune model.onnx --target cuda
        tuner tune model.onnx --rpc tracker.local:9190/rasp4b --target raspberry-pi/4b-aarch64
    """
    is_local = connection.chosen() is None
    with _limited(fields["seconds"] if is_local else None):
        from tuner.errors import RequestError
        from tuner.jobs.buckets import parse_padded
        from tuner.jobs.requests import TuneRequest, model_requests, parse_input_sets
        from tuner.jobs.spec import make_spec
        from tuner.settings import SettingOverrides

        shapes, padded = parse_input_sets(inputs), parse_padded(buckets, masks)
        request = TuneRequest(
            model_requests(models, target, shapes, random_weights, padded),
            make_spec(fields),
            STARTED,
            _command_line(),
        )
        overrides = SettingOverrides(database=database, data_dir=data_dir, rpc=rpc, engine=engine)
        if is_local:
            from tuner import local
    if is_local:
        if webhook:
            raise RequestError("--webhook needs a server; name it with --server URL")
        from tuner.cli.console import stderr_console
        from tuner.cli.rendering.progress import console_callbacks

        with console_callbacks(stderr_console()) as callbacks:
            reports = local.tune(request, overrides, callbacks, separate=separate)
    else:
        from tuner.cli.remote import tune as remote_tune

        with connection.connect(overrides) as client:
            reports = remote_tune.run(client, request, separate=separate, webhook=webhook)
    _show(reports, separate=separate, json_output=json_output)
    if any(report.error for report in reports):
        raise typer.Exit(1)
    if not json_output:
        shared = hints.model_options(target, inputs, buckets, masks, random_weights, overrides)
        for model in models:
            options_of_build = shared | {"--out": f"{name_of(model)}.lib"}
            print_note(f"next: {hints.command('build', model, options=options_of_build)}")


@contextmanager
def _limited(secs: float | None) -> Iterator[None]:
    """End the process inside, where nothing is begun, once the seconds of a command are spent."""
    if secs is None or not 0.0 < secs < float("inf"):
        yield
        return
    left = min(max(STARTED + secs - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
    timer = threading.Timer(left, _give_up, (secs,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def name_of(model: str) -> str:
    """Return the name of a model, which may have dots itself, without that of its format."""
    if model.startswith("zoo:"):
        return model.removeprefix("zoo:").partition("?")[0]
    path = Path(model)
    return path.stem if path.suffix.lower() in (".onnx", ".pt2") else path.name


def _give_up(secs: float) -> None:
    from tuner.errors import OutOfTime

    print_error(str(OutOfTime(secs)))
    os._exit(OutOfTime.exit_code)


def _command_line() -> str:
    """Return the command as its user typed it, without the passwords of URLs."""
    import shlex
    import sys

    from records.database import redact

    arguments = sys.argv[sys.argv.index("tune") :] if "tune" in sys.argv else ["tune"]
    shown = (redact(each) if "://" in each else each for each in arguments)
    return shlex.join(["tuner", *shown])


def _show(reports: "list[TuneReport]", *, separate: bool, json_output: bool) -> None:
    from tuner.cli.rendering.reports import show_tuning, tuning_as_json

    if json_output:
        rows = [tuning_as_json(report) for report in reports]
        print_json({"jobs": rows} if separate else rows[0])
        return
    for report in reports:
        show_tuning(report)
        if report.error is not None:
            print_error(f"job {report.job} failed: {report.error}")
