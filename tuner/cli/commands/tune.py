"""``tuner tune``: spend a budget of trials on a network."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import connection, options
from tuner.cli.console import print_error, print_json
from tuner.cli.spec_options import with_spec_options

if TYPE_CHECKING:
    from tuner.reports import TuneReport
    from tuner.settings import SettingOverrides


@with_spec_options
def tune(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="A .onnx or .pt2 file, or zoo:NAME; several are tuned in one job.",
            show_default=False,
        ),
    ],
    target: options.TargetOption = "llvm",
    inputs: options.InputOption = [],  # noqa: B006  typer reads it, nobody writes it
    separate: Annotated[
        bool,
        typer.Option("--separate", help="Tune each MODEL in a job of its own, side by side."),
    ] = False,
    random_weights: options.RandomWeightsOption = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    engine: options.EngineOption = None,
    rpc: options.RpcOption = None,
    ray_address: options.RayAddressOption = None,
    json_output: options.JsonOption = False,
    **fields: Any,
) -> None:
    """Tune a network: split it into tasks and spend trials where they shorten it most.

    Every trial is stored as soon as it is measured. Stop it whenever you like, with Ctrl-C or
    worse; the same command goes on where it was. The budget counts what was spent before, so a
    network that is tuned already measures nothing.

    Examples:
        tuner tune squeezenet.onnx --trials 1000

        tuner tune zoo:resnet-18 --seconds 600

        tuner tune model.onnx --input data=1,3,224,224 --trials 2000

        tuner tune model.onnx --objective requirements --require-ms 5

        tuner tune a.onnx b.onnx --objective geometric_mean

        tuner tune model.onnx --target cuda

        tuner tune model.onnx --rpc tracker.local:9190/rasp4b --target raspberry-pi/4b-aarch64
    """
    from tuner.jobs.requests import TuneRequest
    from tuner.jobs.spec import make_spec

    request = TuneRequest(
        options.model_requests(models, target, inputs, random_weights), make_spec(fields)
    )
    overrides: SettingOverrides = {
        "database": database,
        "data_dir": data_dir,
        "rpc": rpc,
        "ray_address": ray_address,
        "engine": engine,
    }
    if connection.chosen() is None:
        from tuner import local
        from tuner.cli.console import stderr_console
        from tuner.cli.rendering.progress import console_callbacks

        with console_callbacks(stderr_console()) as callbacks:
            results = local.tune(request, overrides, callbacks, separate=separate)
    else:
        from tuner.cli.remote import tune as remote_tune

        with connection.connect(overrides) as client:
            results = remote_tune.run(client, request, separate=separate)
    _report(results, separate=separate, json_output=json_output)
    if any(result.error for result in results):
        raise typer.Exit(1)


def _report(results: "list[TuneReport]", *, separate: bool, json_output: bool) -> None:
    from tuner.cli.rendering.reports import show_tuning, tuning_as_json

    if json_output:
        rows = [tuning_as_json(result) for result in results]
        print_json({"jobs": rows} if separate else rows[0])
        return
    for result in results:
        show_tuning(result)
        if result.error is not None:
            print_error(f"job {result.job} failed: {result.error}")
