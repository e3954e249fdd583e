"""``tuner tune``: spend a budget of trials on a network."""

from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import connection, options
from tuner.cli.console import print_error, print_json

if TYPE_CHECKING:
    from tuner.reports import TuneReport
    from tuner.settings import SettingOverrides


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
    trials: Annotated[
        int | None,
        typer.Option(
            help="Measurement trials in all; earlier ones count [default: 64 a task].",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Seconds in all; earlier runs count.", show_default=False),
    ] = None,
    trials_per_round: Annotated[
        int | None,
        typer.Option(
            help="Trials that one pick of the scheduler buys [default: by budget, 4 to 64].",
            show_default=False,
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            help="What to minimise: weighted_sum (latency), requirements, geometric_mean "
            "(of speedups) or early_stop."
        ),
    ] = "weighted_sum",
    importance: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]FACTOR", help="Factor of a network in weighted_sum.", show_default=False
        ),
    ] = [],  # noqa: B006
    require_ms: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]MS",
            help="Latency that requirements asks of a network; once met, it gets no more trials.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    baseline_ms: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]MS",
            help="Latency that geometric_mean compares a network with.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    patience: Annotated[
        int | None,
        typer.Option(
            help="Rounds without progress after which early_stop gives a task up [default: 5].",
            show_default=False,
        ),
    ] = None,
    allocator: Annotated[
        str, typer.Option(help="Who spends the budget: gradient, forecast, tvm or round-robin.")
    ] = "gradient",
    separate: Annotated[
        bool,
        typer.Option("--separate", help="Tune each MODEL in a job of its own, side by side."),
    ] = False,
    priority: Annotated[
        int | None,
        typer.Option(
            help="A job gets twice the device time of one whose priority is 1 lower; a new one "
            "has 0.",
            min=-30,
            max=30,
            show_default=False,
        ),
    ] = None,
    stop_below: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            help="Stop once a minute more is forecast to save less than so many milliseconds.",
            show_default=False,
        ),
    ] = None,
    cost_model: Annotated[
        str, typer.Option(help="xgb-ranking, xgb-throughput or random.")
    ] = "xgb-ranking",
    number: Annotated[int, typer.Option(help="Runs averaged into one sample, at least.")] = 1,
    repeat: Annotated[int, typer.Option(help="Samples of each candidate, at least 3.")] = 3,
    min_repeat_ms: Annotated[
        int, typer.Option(help="Time spent on samples of a candidate, milliseconds.")
    ] = 10,
    cache_flush: Annotated[
        bool, typer.Option(help="Empty the CPU's private caches before each sample.")
    ] = True,
    cooldown_ms: Annotated[int, typer.Option(help="Rest between samples, milliseconds.")] = 0,
    run_timeout: Annotated[
        float, typer.Option(help="Seconds until a candidate that still runs is killed.")
    ] = 20.0,
    build_timeout: Annotated[
        float, typer.Option(help="Seconds until a candidate that still builds is given up.")
    ] = 60.0,
    seed: Annotated[int, typer.Option(help="Seeds search and scheduler.")] = 0,
    random_weights: options.RandomWeightsOption = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    engine: options.EngineOption = None,
    rpc: options.RpcOption = None,
    ray_address: options.RayAddressOption = None,
    json_output: options.JsonOption = False,
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
    from tuner.jobs.goals import Goal
    from tuner.jobs.requests import TuneRequest

    first, *more = options.model_requests(models, target, inputs, random_weights)
    request = TuneRequest(
        model=first,
        more_models=tuple(more),
        trials=trials,
        seconds=seconds,
        trials_per_round=trials_per_round,
        allocator=allocator,
        goal=Goal(
            objective,
            importance=options.parse_numbers("--importance", importance),
            required_secs=options.parse_numbers("--require-ms", require_ms, unit=1e-3),
            baseline_secs=options.parse_numbers("--baseline-ms", baseline_ms, unit=1e-3),
            patience=patience,
        ),
        priority=priority,
        least_gain_secs=None if stop_below is None else stop_below / 1e3,
        cost_model=cost_model,
        evaluator={
            "number": number,
            "repeat": repeat,
            "min_repeat_ms": min_repeat_ms,
            "cache_flush": cache_flush,
            "cooldown_ms": cooldown_ms,
            "timeout_secs": run_timeout,
        },
        build_timeout_secs=build_timeout,
        seed=seed,
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
