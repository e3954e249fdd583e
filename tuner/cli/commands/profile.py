"""``tuner profile``: time every kernel of a library inside the running network."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tuner.cli import connection, options
from tuner.cli.console import print_json, print_note
from tuner.cli.options import option

if TYPE_CHECKING:
    from tuner.settings import SettingOverrides


class ProfiledRuntime(StrEnum):
    """Names of runtimes that can time their nodes, as ``--against`` takes them."""

    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"


def profile(
    library: options.LibraryArgument,
    against: Annotated[
        list[ProfiledRuntime],
        option(
            "RUNTIME",
            "Profile the model in onnxruntime or openvino too; repeat for both.",
            panel=options.MEASURING_PANEL,
        ),
    ] = [],
    model: options.LibraryModelOption = None,
    arrays: options.ArraysOption = None,
    shapes: options.ProgramShapesOption = [],
    random_weights: options.RandomWeightsOption = None,
    runs: Annotated[
        int, option("N", "Number of profiled runs, at least 1.", panel=options.MEASURING_PANEL)
    ] = 40,
    seed: options.InputSeedOption = 0,
    html: Annotated[
        Path | None,
        option(
            "FILE",
            "Write the profile as a page with a chart of the calls.",
            panel=options.OUTPUT_PANEL,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        option(
            "FILE", "Write the calls as a trace for ui.perfetto.dev.", panel=options.OUTPUT_PANEL
        ),
    ] = None,
    job: Annotated[
        int | None,
        option(
            "JOB",
            "Show the profile on the page of this job of the server.",
            panel=options.OUTPUT_PANEL,
        ),
    ] = None,
    database: options.DatabaseOption = None,
    data_dir: options.DataDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Show where a library spends its time: each kernel inside the running network.

    Prints a row for each subgraph: its time in the network, the time by its record, the share of
    the device's roof, and a verdict on what limits it; then the nodes of the ONNX model that it
    computes. Time between kernels is a line of its own. The page of a job shows the last profile.

    Examples:
        tuner profile squeezenet.lib --against openvino --model squeezenet.onnx
        tuner profile squeezenet.lib --html profile.html --trace profile.json
        tuner profile squeezenet.lib --job 3
    """
    from tuner import local
    from tuner.cli.rendering.profile import show_profile
    from tuner.errors import RequestError
    from tuner.jobs.requests import parse_inputs
    from tuner.profiling import profile_files
    from tuner.profiling.library_profile import ProfileRequest
    from tuner.profiling.results import as_json

    if runs < 1:
        raise RequestError(f"--runs must be at least 1, got {runs}")
    server = connection.chosen()
    if job is not None and server is None:
        raise RequestError("--job needs a server; name it with --server URL or TUNER_SERVER")
    if server is not None:
        print_note(f"profile runs on this machine, not at {server.url}")
    request = ProfileRequest(
        shapes=parse_inputs(shapes),
        arrays=arrays,
        n_runs=runs,
        seed=seed,
        model=model,
        against=tuple(runtime.value for runtime in against),
        random_weights=random_weights,
    )
    overrides: SettingOverrides = {"database": database, "data_dir": data_dir}
    profiled = local.profile(library, request, overrides)
    if job is not None:
        with connection.connect({}) as client:
            profiled = client.upload_profile(job, profiled)
    profile_files.write(profiled, html, trace)
    if json_output:
        print_json(as_json(profiled))
    else:
        url = server.url if server is not None and job is not None else ""
        show_profile(profiled, overrides, url)
